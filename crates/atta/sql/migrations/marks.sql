-- Some tools left out a mark that prevents old workers from starting.
update {schema}.migrations as migration
set breaking = true
where migration.id in (1, 3, 11, 13, 14, 16, 19)
  and not migration.breaking;
