-- The server's version and the settings that a figure depends on.
select current_setting('server_version') as "version!",
       array(select name || ' ' || current_setting(name)
             from unnest(array['fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size',
                               'wal_level', 'checkpoint_timeout']) as name) as "settings!: Vec<String>"
