import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=5)
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    print(torch.compile(torch.sin, backend=options.backend)(torch.ones(options.size)))


if __name__ == "__main__":
    main()
