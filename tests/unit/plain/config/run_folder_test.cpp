#include "dtrain/config/run_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "dtrain/config/json.h"
#include "support/temp_folder.h"

namespace {

using namespace dtrain;
using dtrain::testing::message_of;
using dtrain::testing::TempFolder;

config::Config run_in(const std::string& folder, bool overwrite = false) {
  config::Config config;
  config.run = {.dir = folder, .overwrite = overwrite};
  return config;
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("A claimed folder holds the configuration, which does not overwrite") {
  const TempFolder folder;
  config::Config config = run_in(folder.path("new/run"), /*overwrite=*/true);
  config.train.lr = 0.123;
  config::claim_run_folder(config);
  const config::Config saved = config::from_json(content(folder.path("new/run/config.json")));
  CHECK(saved.train.lr == 0.123);
  CHECK_FALSE(saved.run.overwrite);
}

TEST_CASE("A folder is claimed once") {
  const TempFolder folder;
  config::claim_run_folder(run_in(folder.path("run")));
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { config::claim_run_folder(run_in(folder.path("run"))); });
  CHECK_THAT(refused, Catch::Contains("holds another run"));
}

TEST_CASE("Overwriting removes the old run and nothing else") {
  const TempFolder folder;
  for (const char* name : {"config.json", "metrics.jsonl", "final/model.safetensors", "notes.txt",
                           "final/thoughts.txt", "logs/0.log"}) {
    folder.write(name, "old");
  }
  config::claim_run_folder(run_in(folder.path(""), /*overwrite=*/true));
  CHECK(content(folder.path("config.json")) != "old");
  CHECK_FALSE(std::filesystem::exists(folder.path("metrics.jsonl")));
  CHECK_FALSE(std::filesystem::exists(folder.path("final/model.safetensors")));
  for (const char* name : {"notes.txt", "final/thoughts.txt", "logs/0.log"}) {
    CHECK(content(folder.path(name)) == "old");
  }
}

TEST_CASE("A folder that cannot be made is told") {
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { config::claim_run_folder(run_in("/proc/dtrain-run")); });
  CHECK_THAT(refused, Catch::Contains("/proc/dtrain-run"));
}
