"""Ask about a picture, with a drafter and without: the same text, sooner.

    python examples/quickstart.py [PICTURE] [QUESTION] [--target FOLDER] [--drafter NAME]

Without arguments it draws a picture and uses the embedded model.
"""

import argparse

from varifocal import Sampling, ask
from varifocal.demo.world import draw
from varifocal.engine import load
from varifocal.images import load_image


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about a picture.")
    parser.add_argument("picture", nargs="?")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--target", default="demo")
    parser.add_argument("--drafter", help="by default the best that is shipped for the target")
    args = parser.parse_args()

    sample = draw("chart", 0, "test")
    picture = load_image(args.picture) if args.picture else sample.image
    question = args.question or sample.turns[0].question

    engine = load(args.target, args.drafter)
    request = ask(question, [picture], max_new_tokens=100)

    # Text comes round by round: several tokens at a time where the drafter guessed well.
    print(f"{question}\n> ", end="")
    answer = engine.stream(request)
    for decided in answer:
        print(decided.text, end="", flush=True)
    result = answer.result()
    print(f"\n{result.drafter}: {result.mean_acceptance_length:.2f} tokens a target forward")

    plain = engine.plain().generate(request)
    print("identical to plain decoding:", plain.token_ids == result.token_ids)

    # The same seed gives the same text here, too, whatever the drafter.
    sampled = ask(
        question, [picture], max_new_tokens=40, sampling=Sampling(temperature=1.0, seed=7)
    )
    print("sampled:", engine.generate(sampled).text)


if __name__ == "__main__":
    main()
