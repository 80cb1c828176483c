#include "dtrain/job/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/config/saved_run.h"
#include "dtrain/job/job.h"
#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::job::run_folder_test {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::TempFolder;

config::Config run_in(const std::string& folder, bool overwrite = false) {
  config::Config config;
  config.run.dir = folder;
  config.run.overwrite = overwrite;
  return config;
}

constexpr const char* kConfig =
    R"({"model": {"layers": 1}, "train": {"steps": 1}, "layout": {"strategy": "ddp"}, "run": {"dir": ""}})";
constexpr const char* kStart = R"({"event":"start","parameters":1})";

// Bytes of an empty safetensors file with dtrain's marker.
std::string model_file() {
  const std::string header = R"({"__metadata__":{"dtrain.model":"{}"}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header;
}

TEST_CASE("A started run saves its configuration without the overwrite setting") {
  const TempFolder folder;
  config::Config config = run_in(folder.path("new/run"), /*overwrite=*/true);
  config.train.lr = 0.123;
  RunFolder(config, "a").begin();
  const config::Config saved = config::from_json(folder.read("new/run/config.json"));
  CHECK(saved.train.lr == 0.123);
  CHECK_FALSE(saved.run.overwrite);
}

TEST_CASE("Testing the file system for commits leaves no files") {
  const TempFolder folder;
  RunFolder(run_in(folder.path("run")), "a").begin();
  CHECK_FALSE(fs::exists(folder.path("run/checkpoints")));
  fs::create_directory(folder.path("run/checkpoints"));
  RunFolder(run_in(folder.path("run"), /*overwrite=*/true), "b").begin();
  CHECK(fs::is_empty(folder.path("run/checkpoints")));
}

TEST_CASE("A started run is not started again") {
  const TempFolder folder;
  RunFolder(run_in(folder.path("run")), "a").begin();
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { RunFolder(run_in(folder.path("run")), "b").begin(); });
  CHECK_THAT(refused,
             testing::Names("--run-dir", folder.path("run"), "--resume auto", "--overwrite"));
}

TEST_CASE("Overwriting removes the old run and nothing else") {
  const TempFolder folder;
  for (const char* name :
       {"checkpoints/step-4.tmp-18ea4b45c0de1234-1/model-00000-of-00001.safetensors", "notes.txt",
        "final/thoughts.txt", "logs/0.log", "checkpoints/notes.txt"}) {
    folder.write(name, "old");
  }
  folder.write("config.json", kConfig);
  folder.write("metrics.jsonl", kStart);
  folder.write("final/model.safetensors", model_file());
  for (const char* name : {"checkpoints/step-3/manifest.json",
                           "checkpoints/step-5.superseded-18ea4b45c0de1234-1/manifest.json"}) {
    folder.write(name, R"({"xxh3": "0"})");  // as every manifest of dtrain begins
  }
  RunFolder(run_in(folder.path(""), /*overwrite=*/true), "a").begin();
  CHECK(folder.read("config.json") != kConfig);
  for (const char* name : {"metrics.jsonl", "final/model.safetensors", "checkpoints/step-3",
                           "checkpoints/step-4.tmp-18ea4b45c0de1234-1",
                           "checkpoints/step-5.superseded-18ea4b45c0de1234-1"}) {
    INFO(name);
    CHECK_FALSE(fs::exists(folder.path(name)));
  }
  for (const char* name :
       {"notes.txt", "final/thoughts.txt", "logs/0.log", "checkpoints/notes.txt"}) {
    CHECK(folder.read(name) == "old");
  }
}

TEST_CASE(
    "A started run replaces the files that an earlier one kept, and a resumed one keeps them") {
  const TempFolder folder;
  const auto start = [&](const std::vector<checkpoint::store::KeptFile>& kept) {
    RunFolder(run_in(folder.path("run"), /*overwrite=*/true), "a").begin({}, kept);
  };
  start({{.name = "config.json", .content = "{}"}, {.name = "tokenizer.json", .content = "old"}});
  CHECK(folder.read("run/init-from/tokenizer.json") == "old");
  start({{.name = "config.json", .content = "{}"}, {.name = "merges.txt", .content = "new"}});
  const auto kept = checkpoint::store::read_kept_files(folder.path("run/init-from"));
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].name == "config.json");
  CHECK(kept[1].name == "merges.txt");
  CHECK(kept[1].content == "new");
  config::Config config = run_in(folder.path("run"));
  set(config, "checkpoint.resume", "auto");
  (void)RunFolder(config, "b").resume(0, {}, {}, kept);
  CHECK(folder.read("run/init-from/merges.txt") == "new");
  folder.write("run/init-from/notes.txt", "mine");
  start({});
  CHECK_FALSE(fs::exists(folder.path("run/init-from/merges.txt")));
  CHECK(folder.read("run/init-from/notes.txt") == "mine");
}

TEST_CASE("Leftovers of killed jobs are removed, users' files stay") {
  const TempFolder folder;
  for (const char* name :
       {"checkpoints/step-3/manifest.json", "REQUEUE",
        "checkpoints/step-4.tmp-18ea4b45c0de1234-1/model-00000-of-00001.safetensors",
        "config.json.tmp-12-0", "final/model.safetensors.tmp-12-0", "notes.tmp-12-0"}) {
    folder.write(name, "old");
  }
  config::Config config = run_in(folder.path(""));
  set(config, "checkpoint.resume", "auto");
  const RunFolder taken(config, "a");
  for (const char* name : {"REQUEUE", "checkpoints/step-4.tmp-18ea4b45c0de1234-1",
                           "config.json.tmp-12-0", "final/model.safetensors.tmp-12-0"}) {
    INFO(name);
    CHECK_FALSE(fs::exists(folder.path(name)));
  }
  for (const char* name : {"checkpoints/step-3/manifest.json", "notes.tmp-12-0"}) {
    CHECK(folder.read(name) == "old");
  }
}

TEST_CASE("Resuming truncates the metrics and quarantines later checkpoints") {
  const TempFolder folder;
  const std::string kept = fmt::format("{}\n{{\"step\":1}}\n{{\"step\":2}}\n", kStart);
  folder.write("metrics.jsonl",
               kept + R"({"step":3})" + "\n" + R"({"event":"checkpoint","step":2})" + "\n");
  for (const char* name :
       {"checkpoints/step-2/manifest.json", "checkpoints/step-10/manifest.json"}) {
    folder.write(name, "old");
  }
  config::Config config = run_in(folder.path(""));
  set(config, "checkpoint.resume", "auto");
  const auto aside = RunFolder(config, "a").resume(2).paths;
  CHECK(folder.read("metrics.jsonl") == kept);
  REQUIRE(aside.size() == 1);
  CHECK(fs::path(aside[0]) == folder.path("checkpoints/step-10.superseded-a"));
  CHECK(fs::exists(folder.path("checkpoints/step-2")));
  CHECK_FALSE(fs::exists(folder.path("checkpoints/step-10")));
}

TEST_CASE("A folder that cannot be created is named") {
  const std::string refused = message_of(
      base::ErrorKind::usage, [&] { RunFolder(run_in("/proc/dtrain-run"), "a").begin(); });
  CHECK_THAT(refused, Catch::Contains("/proc/dtrain-run"));
}

config::Config with_kernels(const char* kernels) {
  config::Config config;
  set(config, "machine.kernels", kernels);
  return config;
}

/// Returns the name under which a setting is compared; empty if it is not.
std::string name_of(const config::Config& config, const std::string& key) {
  for (const auto& [name, value] : agreed_settings(config)) {
    if (name.starts_with(key)) return name;
  }
  return {};
}

TEST_CASE("Ranks need not agree on node settings that change no bit") {
  const config::Config config = with_kernels("fused");
  CHECK(name_of(config, "layout.nnodes").empty());
  CHECK(name_of(config, "machine.threads").empty());
  CHECK(name_of(config, "machine.interface").empty());
  CHECK(name_of(config, "train.seed") == "train.seed");
}

TEST_CASE("Ranks must agree on threads if memory decides what is recomputed") {
  config::Config config = with_kernels("fused");
  set(config, "machine.recompute", "auto");
  CHECK(name_of(config, "machine.threads").empty());
  set(config, "machine.memory_limit", "1GiB");
  CHECK(name_of(config, "machine.threads").starts_with("machine.threads"));
}

TEST_CASE(
    "Ranks must agree on threads if they change bits, and the name says which flag sets them") {
  CHECK_THAT(name_of(with_kernels("plain"), "machine.threads"),
             testing::Names("machine.threads", "--threads"));
}

}  // namespace
}  // namespace dtrain::job::run_folder_test
