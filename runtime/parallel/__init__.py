"""One model on several devices, one process each: every rank has its heads, columns and rows of each layer.

Rank 0 is the process that serves: it owns the scheduler and sends each step's plan to the others, which compute the same
step with their part of the weights. What a layer's parts give is summed by collectives inside the step, captured with it.
"""
