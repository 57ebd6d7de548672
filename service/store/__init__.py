"""The database: it owns the truth. SQLite or PostgreSQL, chosen by URL alone.

Every operation takes an open transaction as its first argument, so the caller decides what is committed together:

    with database.write() as connection:
        claim.guard(connection)
        rounds.finish(connection, round_id, report, now)
        work.finish(connection, claim)
"""
