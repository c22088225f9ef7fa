"""The live lab: `holdfast lab`. Scenes that show each promise on a server and on processes of their own.

place    the lab's own server, in a temporary folder; a fresh database for each scene
crew     worker processes: started, killed, frozen and woken, only by this module
fork_client  starts worker processes by forking one that has imported everything (fork_server)
notes    notes of a process: its statements and its acts
worker   the program of a worker process
outside  effects of handlers outside of the database: send a mail, stop at a step
scene    the parts of a scene: story, knobs, acts, rows, promise, unsafe switch, script
stage    one scene while it runs: its rows, its workers, its tape
tape     what happened, in words
marks    which cells of the rows have changed
hall     the scene that is open in the browser
play     a scene's script without a browser, which is its test
site     pages, acts and the stream, in a browser
serve    `holdfast lab`, on this machine alone
scenes   one module each

Nothing is simulated: whatever a page shows is a row or a process.
"""
