from django.db import migrations

# A queue's table turns over many times a day. Vacuum it after so many dead rows, not after a fifth of
# it, and leave room on each page, so that an update finds a place beside the row that it replaces:
# then it writes less to the log. The worker's row is updated all the time and should stay on its page.
STORAGE = {
    "jobqueue_job": {
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_analyze_scale_factor": 0.05,
        "autovacuum_analyze_threshold": 1000,
        "autovacuum_vacuum_cost_limit": 1000,
    },
    "jobqueue_worker": {"fillfactor": 50, "autovacuum_vacuum_threshold": 200},
}


def set_storage(apps, schema_editor):
    if schema_editor.connection.vendor != "postgresql":
        return
    for table, parameters in STORAGE.items():
        settings = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        schema_editor.execute(f"ALTER TABLE {table} SET ({settings})")


def reset_storage(apps, schema_editor):
    if schema_editor.connection.vendor != "postgresql":
        return
    for table, parameters in STORAGE.items():
        schema_editor.execute(f"ALTER TABLE {table} RESET ({', '.join(parameters)})")


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]

    operations = [migrations.RunPython(set_storage, reset_storage)]
