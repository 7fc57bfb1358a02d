import multiprocessing

import torch


def work(number):
    return number * 2


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, range(3)))
    print(torch.compile(lambda x: x.sum())(torch.ones(3)))
