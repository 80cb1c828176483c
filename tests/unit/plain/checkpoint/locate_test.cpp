#include <filesystem>

#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/names.h"
#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::locate_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using Paths = std::vector<std::string>;
using config::Config;

std::string refusal(const std::string& path) {
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { std::ignore = checkpoints_at(path); });
  CHECK_THAT(message, Contains(path));
  return message;
}

TEST_CASE("A run folder resolves to its checkpoints only, newest first") {
  const TempFolder folder;
  for (const char* name : {"step-9", "step-10", "step-2", "step-11.tmp-r", "step-8.superseded-r"}) {
    folder.write(std::string("run/checkpoints/") + name + "/manifest.json", "{}");
  }
  const std::string checkpoints = folder.path("run/checkpoints/");
  CHECK(checkpoints_at(folder.path("run")) ==
        Paths{checkpoints + "step-10", checkpoints + "step-9", checkpoints + "step-2"});
}

TEST_CASE("A checkpoint resolves to itself, even without its manifest") {
  const TempFolder folder;
  folder.write("run/checkpoints/step-9/model-00001-of-00001.safetensors", "x");
  folder.write("imported/manifest.json", "{}");
  for (const char* name : {"run/checkpoints/step-9", "run/checkpoints/step-9/", "imported"}) {
    CHECK(checkpoints_at(folder.path(name)) == Paths{folder.path(name)});
  }
}

TEST_CASE("A folder of a model or a run is no checkpoint, even if it is named like one") {
  const TempFolder folder;
  folder.write("step-9/config.json", "{}");
  folder.write("step-8/config.json", "{}");
  folder.write("step-8/checkpoints/step-3/manifest.json", "{}");
  CHECK_FALSE(is_checkpoint(folder.path("step-9")));
  CHECK(checkpoints_at(folder.path("step-8")) == Paths{folder.path("step-8/checkpoints/step-3")});
  for (const std::string name : {"model.safetensors", "pytorch_model.bin"}) {
    const TempFolder other;
    const std::string file = other.write("step-7/" + name, "x");
    CHECK_FALSE(is_checkpoint(other.path("step-7")));
    CHECK(weights_at(other.path("step-7")) == file);
    other.write("step-7/manifest.json", "{}");
    CHECK(is_checkpoint(other.path("step-7")));
  }
}

TEST_CASE("A path that is neither a run nor a checkpoint is rejected by name") {
  const TempFolder folder;
  folder.write("empty/run/config.json", "{}");
  folder.write("file", "x");
  refusal(folder.path("missing"));
  refusal(folder.path("file"));
  CHECK_THAT(refusal(folder.path("empty")), Names("config.json", "--run-dir"));
  CHECK_THAT(refusal(folder.path("empty/run")), Names("--checkpoint-every"));
  CHECK(checkpoints_of_run(folder.path("empty/run")).empty());
}

constexpr const char* kRestart =
    R"({"command_line": ["dtrain", "--data", "text"], "launch": "a-1", "restarts": 1})";

std::string config_file(std::string_view launch, std::string_view command = "dtrain") {
  return R"({"provenance": {"command_line": [")" + std::string(command) +
         R"(", "--data", "text"], "launch": ")" + std::string(launch) + R"(", "restarts": 0}})";
}

Config run_in(const std::string& folder) {
  Config config;
  config.run.dir = folder;
  return config;
}

TEST_CASE("A run with the same launch and command line is an earlier attempt") {
  const TempFolder folder;
  folder.write("run/config.json", config_file("a-1"));
  const Config config = run_in(folder.path("run"));
  const auto begun = find_earlier_attempt(config, kRestart);
  REQUIRE(begun);
  CHECK(begun->run_dir == folder.path("run"));
  CHECK_FALSE(begun->has_checkpoint);
  folder.write("run/checkpoints/step-4/manifest.json", "{}");
  CHECK(find_earlier_attempt(config, kRestart)->has_checkpoint);
}

TEST_CASE("Any other run is not an earlier attempt") {
  const TempFolder folder;
  folder.write("other-launch/config.json", config_file("a-2"));
  folder.write("other-command/config.json", config_file("a-1", "other"));
  folder.write("foreign/config.json", "no JSON");
  folder.write("without/config.json", "{}");
  for (const char* name : {"other-launch", "other-command", "foreign", "without", "missing"}) {
    CHECK_FALSE(find_earlier_attempt(run_in(folder.path(name)), kRestart));
  }
}

TEST_CASE("A first start, or one without a launcher, has no earlier attempt") {
  const TempFolder folder;
  folder.write("run/config.json", config_file("a-1"));
  const Config config = run_in(folder.path("run"));
  for (const char* provenance :
       {"{}", R"({"command_line": ["dtrain", "--data", "text"], "restarts": 1})",
        R"({"command_line": ["dtrain", "--data", "text"], "launch": "a-1", "restarts": 0})"}) {
    CHECK_FALSE(find_earlier_attempt(config, provenance));
  }
}

TEST_CASE("A command without a run folder finds the one that it created") {
  const TempFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path(""));
  folder.write("runs/text-1/config.json", config_file("a-0"));
  folder.write("runs/text-2/config.json", config_file("a-1"));
  folder.write("runs/other-1/config.json", config_file("a-1"));
  Config config;
  config.data.train = "data/text.dtok";
  const auto earlier = find_earlier_attempt(config, kRestart);
  std::filesystem::current_path(before);
  REQUIRE(earlier);
  CHECK(earlier->run_dir == "runs/text-2");
}

TEST_CASE("A restart resumes from the newest checkpoint for any command") {
  for (const char* resume : {"none", "auto", "/other/run"}) {
    Config config = run_in("");
    set(config, "checkpoint.resume", resume);
    config.run.overwrite = true;
    const Config now = resume_settings(config, {.run_dir = "run", .has_checkpoint = true});
    CHECK(now.checkpoint.resume.is_automatic());
    CHECK_FALSE(now.run.overwrite);
    CHECK(now.run.dir == "run");
  }
}

TEST_CASE("Without a checkpoint a restart begins as the command does, in the same folder") {
  Config config = run_in("");
  CHECK(resume_settings(config, {.run_dir = "run"}).checkpoint.resume.is_automatic());
  set(config, "checkpoint.resume", "/other/run");
  const Config now = resume_settings(config, {.run_dir = "run"});
  CHECK(now.checkpoint.resume.path == "/other/run");
  CHECK(now.run.overwrite);  // replaces the earlier attempt's files
}

}  // namespace
}  // namespace dtrain::checkpoint::store::locate_test
