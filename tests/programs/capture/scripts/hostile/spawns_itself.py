import multiprocessing

import torch


def work():
    print("done")


process = multiprocessing.get_context("spawn").Process(target=work)
process.start()
process.join()
print(torch.compile(lambda x: x.sum() + 1)(torch.ones(3)))
