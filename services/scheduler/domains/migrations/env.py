from meridian.database import run_migrations

run_migrations()
