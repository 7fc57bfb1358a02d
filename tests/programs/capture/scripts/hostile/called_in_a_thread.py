import threading

import torch

f = torch.compile(lambda x: x.cumsum(0))
threads = [threading.Thread(target=lambda: f(torch.ones(5))) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
