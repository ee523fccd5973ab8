-- From revisions 11 to 17: add_jobs notifies by itself from revision 18 on.
drop trigger if exists _900_after_insert on {schema}._private_jobs;
drop function if exists {schema}.tg_jobs__after_insert();
