"""The agent on a GPU host: claims jobs, confines and watches their steps, reports what it saw.

It stands on pydantic, httpx2, nvidia-ml-py and click, and imports nothing of the service.
"""
