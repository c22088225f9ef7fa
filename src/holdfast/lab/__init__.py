"""The live lab: `holdfast lab`. Scenes that show each promise on a server and on processes of their own.

place    the lab's own server, in a temporary folder; a fresh database for each scene
crew     worker processes: started, killed, frozen and woken here, and no others
nursery  where worker processes come from: one that has imported everything (cradle), and forks
notes    what a process writes down: the statements that it ran, what it did
worker   the program of a worker process
outside  what handlers of scenes do: send a mail, stop at a step
scene    what a scene is made of: story, knobs, acts, rows, promise, unsafe switch, script
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
