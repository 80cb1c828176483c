#include "dtrain/train/run_folder.h"

#include <catch2/catch.hpp>

#include "dtrain/config/json.h"
#include "support/temp_folder.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::TempFolder;

config::Config run_in(const std::string& folder, bool overwrite = false) {
  config::Config config;
  config.run = {.dir = folder, .overwrite = overwrite};
  return config;
}

TEST_CASE("A folder that was begun in holds the configuration, which does not overwrite") {
  const TempFolder folder;
  config::Config config = run_in(folder.path("new/run"), /*overwrite=*/true);
  config.train.lr = 0.123;
  RunFolder(config, "a").begin();
  const config::Config saved = config::from_json(folder.read("new/run/config.json"));
  CHECK(saved.train.lr == 0.123);
  CHECK_FALSE(saved.run.overwrite);
}

TEST_CASE("A run that was begun is not begun again") {
  const TempFolder folder;
  RunFolder(run_in(folder.path("run")), "a").begin();
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { RunFolder(run_in(folder.path("run")), "b").begin(); });
  CHECK_THAT(refused, Catch::Contains("holds another run"));
}

TEST_CASE("Overwriting removes the old run and nothing else") {
  const TempFolder folder;
  for (const char* name : {"config.json", "metrics.jsonl", "final/model.safetensors",
                           "checkpoints/step-4.tmp-x/model-00000-of-00001.safetensors", "notes.txt",
                           "final/thoughts.txt", "logs/0.log", "checkpoints/notes.txt"}) {
    folder.write(name, "old");
  }
  for (const char* name :
       {"checkpoints/step-3/manifest.json", "checkpoints/step-5.superseded-x/manifest.json"}) {
    folder.write(name, R"({"xxh3": "0"})");  // as every manifest of dtrain begins
  }
  RunFolder(run_in(folder.path(""), /*overwrite=*/true), "a").begin();
  CHECK(folder.read("config.json") != "old");
  for (const char* name : {"metrics.jsonl", "final/model.safetensors", "checkpoints/step-3",
                           "checkpoints/step-4.tmp-x", "checkpoints/step-5.superseded-x"}) {
    INFO(name);
    CHECK_FALSE(fs::exists(folder.path(name)));
  }
  for (const char* name :
       {"notes.txt", "final/thoughts.txt", "logs/0.log", "checkpoints/notes.txt"}) {
    CHECK(folder.read(name) == "old");
  }
}

TEST_CASE("What killed jobs left is removed, and what people put there stays") {
  const TempFolder folder;
  for (const char* name :
       {"metrics.jsonl", "checkpoints/step-3/manifest.json", "REQUEUE",
        "checkpoints/step-4.tmp-x/model-00000-of-00001.safetensors", "config.json.tmp-12-0",
        "final/model.safetensors.tmp-12-0", "notes.tmp-12-0"}) {
    folder.write(name, "old");
  }
  config::Config config = run_in(folder.path(""));
  config.checkpoint.resume = "auto";
  const RunFolder taken(config, "a");
  for (const char* name : {"REQUEUE", "checkpoints/step-4.tmp-x", "config.json.tmp-12-0",
                           "final/model.safetensors.tmp-12-0"}) {
    INFO(name);
    CHECK_FALSE(fs::exists(folder.path(name)));
  }
  for (const char* name : {"metrics.jsonl", "checkpoints/step-3/manifest.json", "notes.tmp-12-0"}) {
    CHECK(folder.read(name) == "old");
  }
}

TEST_CASE("Going on cuts the metrics back and sets later checkpoints aside") {
  const TempFolder folder;
  folder.write("metrics.jsonl",
               "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n"
               "{\"event\":\"checkpoint\",\"step\":2}\n");
  for (const char* name :
       {"checkpoints/step-2/manifest.json", "checkpoints/step-10/manifest.json"}) {
    folder.write(name, "old");
  }
  config::Config config = run_in(folder.path(""));
  config.checkpoint.resume = "auto";
  const auto aside = RunFolder(config, "a").go_on(2);
  CHECK(folder.read("metrics.jsonl") == "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n");
  REQUIRE(aside.size() == 1);
  CHECK(fs::path(aside[0]) == folder.path("checkpoints/step-10.superseded-a"));
  CHECK(fs::exists(folder.path("checkpoints/step-2")));
  CHECK_FALSE(fs::exists(folder.path("checkpoints/step-10")));
}

TEST_CASE("A folder that cannot be made is told") {
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { RunFolder(run_in("/proc/dtrain-run"), "a").begin(); });
  CHECK_THAT(refused, Catch::Contains("/proc/dtrain-run"));
}

}  // namespace
}  // namespace dtrain::train
