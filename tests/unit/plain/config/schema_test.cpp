#include "dtrain/config/schema/schema.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/advice.h"
#include "dtrain/config/saved_run.h"
#include "support/messages.h"
#include "support/settings.h"

namespace schema_test {
namespace {

using namespace dtrain::config;
using dtrain::testing::Names;
namespace testing = dtrain::testing;

TEST_CASE("Keys are unique, flags within a command, and every key belongs to a group") {
  std::set<std::string_view> keys;
  std::set<std::pair<Command, std::string_view>> flags;
  for (const Setting& setting : settings()) {
    INFO(setting.key);
    CHECK(keys.insert(setting.key).second);
    for (const Command command : kCommands) {
      if (setting.is_for(command)) CHECK(flags.emplace(command, setting.flag).second);
    }
    CHECK(setting.flag.starts_with("--") != setting.is_positional());
    CHECK_FALSE(setting.help.empty());
    CHECK(setting.commands != 0);
    int owners = 0;
    for (const Group& group : groups()) owners += setting.key.starts_with(group.prefix) ? 1 : 0;
    CHECK(owners == 1);
  }
}

// Two rows with the same field would pass the other tests.
TEST_CASE("Every setting has a distinct field") {
  for (const Setting& setting : settings()) {
    if (setting.allowed.choices.size() == 1) continue;  // it has no other value
    Config config;
    testing::change(setting, config);
    for (const Setting& other : settings()) {
      INFO(setting.key << " and " << other.key);
      const bool is_changed = value_text(other, config) != value_text(other, Config{});
      CHECK(is_changed == (&other == &setting));
    }
  }
}

TEST_CASE("Invalid text is rejected with the accepted syntax") {
  for (const Setting& setting : settings()) {
    INFO(setting.key);
    Config config;
    // The available devices are known only at a start.
    if (setting.allowed.syntax.empty() || setting.key == "machine.device") continue;
    CHECK_THROWS_WITH(assign_text(setting, "many", setting.flag, config),
                      Names(setting.flag, "\"many\"", setting.allowed.syntax));
  }
}

TEST_CASE("Every default is an allowed value") {
  for (const Setting& setting : settings()) {
    Config config;
    CHECK_NOTHROW(assign_text(setting, value_text(setting, Config{}), setting.flag, config));
  }
}

TEST_CASE("Help fits 100 columns and names every flag of its command") {
  for (const Command command : kCommands) {
    CLI::App app;
    dtrain::base::set_up_parser(app);
    add_settings(app, command);
    const std::string help = dtrain::base::flags_help(app, 100);
    std::set<std::string_view> flags;
    for (const Setting& setting : settings()) {
      if (setting.is_for(command)) flags.insert(setting.flag);
    }
    for (const Setting& setting : settings()) {
      const bool named = help.find("\n  " + std::string(setting.flag) + " ") != std::string::npos;
      INFO(setting.flag);
      CHECK(named == flags.contains(setting.flag));
    }
    for (std::size_t begin = 0; begin < help.size();) {
      const std::size_t end = help.find('\n', begin);
      CHECK(end - begin <= 100);
      begin = end + 1;
    }
  }
}

TEST_CASE("Copies of a configuration do not share family settings") {
  const Config config;
  Config copy = config;
  set(copy, "model.neurons", "8");
  CHECK(bdh::settings_of(copy.model).neurons == 8);
  CHECK(bdh::settings_of(config.model).neurons == bdh::Settings().neurons);
}

TEST_CASE("A mistyped key suggests the nearest one") {
  CHECK(nearest_key("model.widht") == "model.width");
  CHECK(nearest_key("width") == "model.width");
  CHECK(nearest_key("trian.lr") == "train.lr");
  CHECK(nearest_key("data.seqlen") == "data.seq_len");
  CHECK(nearest_key("zzzzzz").empty());
}

TEST_CASE("Foreign flags map to existing settings and do not collide with our flags") {
  const auto check = [](const ForeignFlags& row) {
    CHECK((row.key.empty() || find_key(row.key) != nullptr));
    CHECK((!row.key.empty() || !row.note.empty()));
    std::istringstream names{std::string(row.names)};
    for (std::string name; names >> name;) {
      INFO(name);
      CHECK(find_flag("--" + name) == nullptr);
      CHECK(find_foreign_flag(name) == &row);  // each name appears once
    }
  };
  for (const ForeignFlags& row : foreign_flags()) check(row);
  for (const Family* family : families()) {
    for (const ForeignFlags& row : family->foreign_flags) check(row);
  }
}

TEST_CASE("Every setting round-trips through JSON exactly") {
  for (const Command command : {Command::train, Command::generate, Command::verify}) {
    for (const Family* family : families()) {
      Config config;
      for (const Setting& setting : settings()) testing::change(setting, config);
      config.model.name = family->name;
      const Config back = from_json(to_json(command, config));
      for (const Setting& setting : settings()) {
        if (!setting.is_used(command, config)) continue;
        INFO(setting.key);
        CHECK(value_json(setting, back) == value_json(setting, config));
      }
    }
  }
}

TEST_CASE("JSON contains exactly the settings of its command") {
  const std::string train = to_json(Command::train, {});
  CHECK(train.find("\"golden\"") == std::string::npos);
  CHECK(train.find("\"width\"") != std::string::npos);
  CHECK(to_json(Command::verify, {}).find("\"width\"") == std::string::npos);
}

TEST_CASE("JSON contains the settings of the selected family only") {
  for (const Family* family : families()) {
    Config config;
    for (const Setting& setting : settings()) testing::change(setting, config);
    config.model.name = family->name;
    const auto model = nlohmann::json::parse(to_json(Command::train, config)).at("model");
    for (const Family* owner : families()) {
      for (const Setting& setting : owner->settings) {
        if (!setting.key.starts_with("model.")) continue;
        INFO(setting.key << " of " << owner->name << ", with --model " << family->name);
        const std::string key(setting.key.substr(setting.key.find('.') + 1));
        CHECK(model.contains(key) == (owner == family));
      }
    }
  }
}

TEST_CASE("Removed settings in a configuration of an older build are ignored") {
  const Config config = from_json(
      R"({"report": {"eval_batches": 32, "log_every": 7}, "layout": {"tied_reshard": "per-use"}})");
  CHECK(config.report.log_every == 7);
  CHECK_THROWS_AS(from_json(R"({"report": {"eval_bunches": 32}})"), dtrain::base::Error);
}

TEST_CASE("A request round-trips its command and configuration") {
  Config config;
  config.generate.prompt = "In the beginning\n";
  const Request back = from_request(to_request({Command::generate, config}));
  CHECK(back.command == Command::generate);
  CHECK(back.config.generate.prompt == config.generate.prompt);
  CHECK_THROWS_AS(from_request("{}"), dtrain::base::Error);
  CHECK_THROWS_AS(from_request(R"({"command": "dance", "config": {}})"), dtrain::base::Error);
}

}  // namespace
}  // namespace schema_test
