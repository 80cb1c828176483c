#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/saved_run.h"
#include "support/settings.h"

namespace json_test {
namespace {

using namespace dtrain::config;
namespace testing = dtrain::testing;

TEST_CASE("Every setting comes back from JSON with all its bits") {
  for (const Command command : {Command::train, Command::generate, Command::verify}) {
    Config config;
    for (const Setting& setting : settings()) testing::change(setting, config);
    const Config back = from_json(to_json(command, config));
    for (const Setting& setting : settings()) {
      if (!setting.is_for(command)) continue;
      INFO(setting.key);
      CHECK(value_json(setting, back) == value_json(setting, config));
    }
  }
}

TEST_CASE("JSON holds exactly the settings of its command") {
  const std::string train = to_json(Command::train, {});
  CHECK(train.find("\"golden\"") == std::string::npos);
  CHECK(train.find("\"width\"") != std::string::npos);
  CHECK(to_json(Command::verify, {}).find("\"width\"") == std::string::npos);
}

TEST_CASE("What an older build saved is read without the settings that are gone") {
  const Config config = from_json(
      R"({"report": {"eval_batches": 32, "log_every": 7}, "layout": {"tied_reshard": "per-use"}})");
  CHECK(config.report.log_every == 7);
  CHECK_THROWS_AS(from_json(R"({"report": {"eval_bunches": 32}})"), dtrain::base::Error);
}

TEST_CASE("A request keeps its command and configuration") {
  Config config;
  config.generate.prompt = "In the beginning\n";
  const Request back = from_request(to_request({Command::generate, config}));
  CHECK(back.command == Command::generate);
  CHECK(back.config.generate.prompt == config.generate.prompt);
  CHECK_THROWS_AS(from_request("{}"), dtrain::base::Error);
  CHECK_THROWS_AS(from_request(R"({"command": "dance", "config": {}})"), dtrain::base::Error);
}

}  // namespace
}  // namespace json_test
