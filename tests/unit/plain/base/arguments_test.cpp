#include "dtrain/base/host/arguments.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "support/messages.h"

namespace dtrain::base::arguments_test {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;
using dtrain::testing::Names;

struct Parser {
  Parser() {
    set_up_parser(app);
    tool = app.add_subcommand("tool", "does something");
    tool->add_option("--log-dir", folder, "where to")->type_name("DIR");
    tool->add_flag("-q,--quiet", quiet, "say less");
    tool->add_flag("-a,--all", all, "take all");
    tool->add_option("-n,--number", number, "how many")->type_name("N");
    tool->add_option("WORD", words, "words");
  }

  CLI::App app{"a program", "program"};
  CLI::App* tool = nullptr;
  std::string folder = "unset";
  bool quiet = false;
  bool all = false;
  std::string number = "unset";
  Words words;
};

TEST_CASE("A flag takes the next word or the text after =, and _ is accepted for -") {
  for (const Words& arguments :
       {Words{"tool", "--log-dir", "a", "w", "--quiet"}, Words{"tool", "--log_dir=a", "-q", "w"},
        Words{"tool", "w", "--log-dir=x", "--log-dir=a", "--quiet=on"}}) {
    Parser parser;
    parse_arguments(parser.app, arguments);
    CHECK(parser.folder == "a");
    CHECK(parser.quiet);
    CHECK(parser.words == Words{"w"});
    CHECK(parser.app.remaining(true).empty());
    CHECK(&chosen_command(parser.app) == parser.tool);
  }
}

TEST_CASE("An empty value consumes no word, and a value may begin with -- only after =") {
  Parser parser;
  parse_arguments(parser.app, {"tool", "--log-dir=", "w"});
  CHECK(parser.folder.empty());
  CHECK(parser.words == Words{"w"});
  parse_arguments(parser.app, {"tool", "--log-dir=--odd"});
  CHECK(parser.folder == "--odd");
  for (const Words& arguments :
       {Words{"tool", "--log-dir"}, Words{"tool", "--log-dir", "--quiet"}}) {
    CHECK_THROWS_WITH(parse_arguments(parser.app, arguments),
                      Names("program tool", "--log-dir", "DIR"));
  }
}

TEST_CASE("Unknown flags are left to the caller, before missing required flags are reported") {
  Parser parser;
  parser.tool->add_option("--output")->required();
  CHECK_THROWS_WITH(parse_arguments(parser.app, {"tool", "w"}), Names("--output"));
  parse_arguments(parser.app, {"tool", "--outptu=x"});
  CHECK(parser.app.remaining(true) == Words{"--outptu=x"});
  CHECK_THROWS_AS(parse_arguments(parser.app, {"tool", "--outptu", "--help"}), CLI::CallForHelp);
}

TEST_CASE("A word with one dash is parsed as short flags or left unchanged") {
  for (const Words& arguments : {Words{"tool", "-qa", "-n3"}, Words{"tool", "-aq", "-n=3"},
                                 Words{"tool", "-q=on", "-a", "-n", "3"}}) {
    Parser parser;
    parse_arguments(parser.app, arguments);
    CHECK(parser.quiet);
    CHECK(parser.all);
    CHECK(parser.number == "3");
    CHECK(parser.app.remaining(true).empty());
  }
  for (const std::string word :
       {"-quick", "-quiet", "-quiet=on", "-hq3", "-number", "-number=3", "-an", "-x", "-xq"}) {
    Parser parser;
    parse_arguments(parser.app, {"tool", word});
    const Words rest = parser.app.remaining(true);
    REQUIRE(rest.size() == 1);
    CHECK(as_typed(rest.front()) == word);
    CHECK_FALSE(parser.quiet);
    CHECK_FALSE(parser.all);
    CHECK(parser.number == "unset");
  }
}

TEST_CASE("A word that CLI11 would drop is rejected") {
  Parser parser;
  CHECK_THROWS_WITH(parse_arguments(parser.app, {"tool", "w", "++"}),
                    Names("program tool", "\"++\"", "./++"));
  parse_arguments(parser.app, {"tool", "--log-dir", "++", "--", "++"});
  CHECK(parser.folder == "++");
  CHECK(parser.words == Words{"++"});
}

TEST_CASE("Words before and after -- are positional") {
  Parser parser;
  parse_arguments(parser.app, {"tool", "a", "--log-dir", "x", "-", "--", "-q", "--", "tool"});
  CHECK(parser.words == Words{"a", "-", "-q", "--", "tool"});
  CHECK(parser.folder == "x");
  CHECK_FALSE(parser.quiet);
  CHECK(parser.app.remaining(true) == Words{"--"});
}

TEST_CASE("A switch is on or off, and takes no value if overrides are disabled") {
  Parser parser;
  for (const std::string value : {"", "maybe", "{}"}) {
    CHECK_THROWS_WITH(parse_arguments(parser.app, {"tool", "--quiet=" + value}),
                      Names("program tool", "--quiet", '"' + value + '"'));
  }
  parse_arguments(parser.app, {"tool", "--quiet=off"});
  CHECK_FALSE(parser.quiet);
  parser.tool->get_option("--quiet")->disable_flag_override();
  CHECK_THROWS_WITH(parse_arguments(parser.app, {"tool", "--quiet=on"}),
                    Names("program tool", "--quiet", "\"on\""));
}

TEST_CASE("Words after a program's name are not parsed") {
  CLI::App app("starts programs", "launcher");
  set_up_parser(app);
  app.prefix_command();
  int ranks = 0;
  app.add_option("--np,-n", ranks);
  for (const Words& arguments :
       {Words{"-n", "3", "prog", "-n", "4", "--np"}, Words{"-np=3", "prog", "-n", "4", "--np"},
        Words{"-n3", "prog", "-n", "4", "--np"}}) {
    parse_arguments(app, arguments);
    CHECK(ranks == 3);
    CHECK(app.remaining() == Words{"prog", "-n", "4", "--np"});
  }
  parse_arguments(app, {"-n", "2", "--", "--odd", "-np"});
  CHECK(app.remaining() == Words{"--", "--odd", "-np"});
}

TEST_CASE("Help text is wrapped in its own column") {
  const Parser parser;
  const std::string help = help_of(*parser.tool, 40);
  CHECK_THAT(help, Contains("program tool WORD... [flags]\n") && Contains("\n  --log-dir DIR"));
  CHECK_THAT(help, Contains("\n  -q, --quiet"));
  CHECK(wrapped("  one two three", 9) == "  one two\n  three\n");
  CHECK(help_entry("--flag", "one two", 32) ==
        "  --flag                    one\n"
        "                            two\n");
}

}  // namespace
}  // namespace dtrain::base::arguments_test
