#include "dtrain/config/json.h"

#include <catch2/catch.hpp>
#include <limits>

#include "dtrain/base/error.h"

namespace {

using namespace dtrain::config;

// Another value than the default for every setting, so that one that is left out is noticed.
void change(const Setting& setting, Config& config) {
  visit_value(setting, config, [&]<typename T>(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = !value;
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = setting.choices.empty() ? "text \"with\"\nünusual 字" : setting.choices.back().name;
      if (!setting.choices.empty() && !setting.choices.back().works()) {
        value = setting.choices[1].name;
      }
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      value = {"a", "b"};
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      value = std::numeric_limits<std::uint64_t>::max();
    } else if constexpr (std::is_same_v<T, double>) {
      value = 0.1 + 0.2;
    } else {
      value += 1;
    }
  });
}

TEST_CASE("Every setting comes back from JSON with all its bits") {
  for (const Command command : {Command::train, Command::generate, Command::verify}) {
    Config config;
    for (const Setting& setting : settings()) change(setting, config);
    const Config back = from_json(to_json(command, config));
    for (const Setting& setting : settings()) {
      if (!setting.is_for(command)) continue;
      INFO(setting.key);
      visit_value(setting, config, [&]<typename T>(const T& value) {
        Config& other = const_cast<Config&>(back);
        CHECK(value == std::get<FieldOf<T>>(setting.field)(other));
      });
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
  const Config config = from_json(R"({"report": {"eval_batches": 32, "log_every": 7}})");
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
