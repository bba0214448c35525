"""The help of the commands is data: nothing in it is left over, and no option is without words."""

from sinkinterp.cli.main import COMMANDS
from sinkinterp.cli.options import HELP, checked

OPTIONS = {command.__name__: checked(command).__annotations__ for command in COMMANDS}
OWN = {command: HELP.get(command, {}) for command in OPTIONS}


def test_every_option_says_what_it_is():
    said = [hint.__metadata__[0].help for options in OPTIONS.values() for hint in options.values()]
    assert len(said) > 100 and all(said) and not any("{" in words for words in said)


def test_the_file_of_help_has_words_for_options_alone():
    assert HELP.keys() - {"every"} <= OPTIONS.keys()
    assert all(OWN[command].keys() <= options.keys() for command, options in OPTIONS.items())
    assert HELP["every"].keys() == {
        name for command, options in OPTIONS.items() for name in options.keys() - OWN[command]
    }
