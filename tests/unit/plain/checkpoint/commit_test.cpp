#include "dtrain/checkpoint/store/commit.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "support/example_checkpoint.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::commit_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::kExampleRun;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::save_example;
using dtrain::testing::TempFolder;
using Steps = std::vector<std::int64_t>;

base::Disk disk(ErrorKind::checkpoint);
const std::string kLeft = ".tmp-" + kExampleRun;  // of a killed start

TEST_CASE("Each step has one checkpoint name") {
  CHECK(checkpoints_folder("run") == "run/checkpoints");
  CHECK(checkpoint_name(12) == "step-12");
  CHECK(step_of("step-0") == 0);
  CHECK(step_of("step-9223372036854775807") == std::numeric_limits<std::int64_t>::max());
  for (const char* name :
       {"", "step-", "step-01", "step--1", "step-+1", "step-1 ", " step-1", "Step-1",
        "step-1.tmp-x", "step-0x1", "step-9223372036854775808", "latest"}) {
    CAPTURE(name);
    CHECK_FALSE(step_of(name).has_value());
  }
  CHECK(temporary_folder("c", 3, "r") == "c/step-3.tmp-r");
}

TEST_CASE("Start IDs are distinguished from names that users choose") {
  CHECK(is_start_id(new_start_id()));
  CHECK(is_start_id("18ea4b45c0de1234-1"));
  for (const char* name :
       {"", "mine", "2024-06", "20240607-1", "18ea4b45c0de1234", "18ea4b45c0de1234-",
        "18ea4b45c0de1234-x", "18EA4B45C0DE1234-1", "-18ea4b45c0de1234-1"}) {
    CAPTURE(name);
    CHECK_FALSE(is_start_id(name));
  }
}

TEST_CASE("Only checkpoints are listed, newest first, by number") {
  const TempFolder folder;
  CHECK(list_steps(folder.path("absent")).empty());
  for (const char* name :
       {"step-9", "step-10", "step-2", "step-11.tmp-x", "step-12.superseded-x"}) {
    std::filesystem::create_directory(folder.path(name));
  }
  CHECK(list_steps(folder.path("")) == Steps{10, 9, 2});
  const std::string file = folder.write("file", "x");
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { std::ignore = list_steps(file); }),
             Contains(file));
}

TEST_CASE("A checkpoint gets its name only when committed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  format::Manifest manifest = dtrain::testing::example_manifest(4, 1);
  disk.make_folder(dtrain::testing::example_folder(checkpoints, 4));
  manifest.contents = dtrain::testing::save_example_shard(disk, checkpoints, 4, 0, 1);
  CHECK(list_steps(checkpoints).empty());
  CHECK(commit(disk, checkpoints, manifest).empty());
  CHECK(list_steps(checkpoints) == Steps{4});
  CHECK(folder.count() == 1);
  CHECK(dtrain::testing::verify_all(folder.path("step-4")) == manifest);
}

TEST_CASE("Saving a step again quarantines its older checkpoint, but no foreign folder") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  save_example(disk, checkpoints, 4, 1);
  save_example(disk, checkpoints, 4, 2);
  CHECK(dtrain::testing::verify_all(folder.path("step-4")).mesh.num_ranks() == 2);
  const std::string aside = folder.path(std::string("step-4.superseded-") + kExampleRun);
  CHECK(dtrain::testing::verify_all(aside).mesh.num_ranks() == 1);
  folder.write("step-5/notes.txt", "mine");
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { save_example(disk, checkpoints, 5, 1); }),
             Contains("step-5"));
  CHECK(folder.read("step-5/notes.txt") == "mine");
}

format::Manifest half_written(const std::string& checkpoints) {
  format::Manifest manifest = dtrain::testing::example_manifest(5, 2);
  disk.make_folder(dtrain::testing::example_folder(checkpoints, 5));
  manifest.contents = dtrain::testing::save_example_shard(disk, checkpoints, 5, 1, 2);
  return manifest;
}

std::string refusal(const std::string& checkpoints, const format::Manifest& manifest) {
  return message_of(ErrorKind::checkpoint,
                    [&] { std::ignore = commit(disk, checkpoints, manifest); });
}

TEST_CASE("An incomplete checkpoint is not committed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  format::Manifest manifest = half_written(checkpoints);
  CHECK_THAT(refusal(checkpoints, manifest), Contains("model.rows"));
  format::merge(manifest.contents, dtrain::testing::save_example_shard(disk, checkpoints, 5, 0, 2));
  const std::string temporary = dtrain::testing::example_folder(checkpoints, 5);
  const std::string file = temporary + "/model-00002-of-00002.safetensors";
  std::filesystem::resize_file(file, 8);
  CHECK_THAT(refusal(checkpoints, manifest), Names(file, "8 bytes"));
  std::filesystem::remove(file);
  CHECK_THAT(refusal(checkpoints, manifest), Names(file, std::strerror(ENOENT)));
  CHECK(list_steps(checkpoints).empty());
}

/// Forwards to the disk; tests override single operations with failing ones.
class ThroughDisk : public base::FileSystem {
 public:
  [[nodiscard]] std::unique_ptr<base::OutputFile> create_file(const std::string& path) override {
    return disk.create_file(path);
  }
  void make_folder(const std::string& path) override { disk.make_folder(path); }
  void sync_folder(const std::string& path) override { disk.sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override { disk.rename(from, to); }
  void remove_file(const std::string& path) override { disk.remove_file(path); }
  void remove_folder(const std::string& path) override { disk.remove_folder(path); }
};

/// A disk on which syncing the checkpoints folder fails after the rename.
class FailsAfterRename final : public ThroughDisk {
 public:
  void sync_folder(const std::string& path) override {
    if (renamed_) base::fail(ErrorKind::checkpoint, "'{}' not synced", path);
    disk.sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    disk.rename(from, to);
    renamed_ = true;
  }

 private:
  bool renamed_ = false;
};

/// A disk on which renaming the temporary folder of a save fails.
class KeepsTemporary final : public ThroughDisk {
 public:
  void rename(const std::string& from, const std::string& to) override {
    if (from.find(".tmp-") != std::string::npos) base::fail(ErrorKind::checkpoint, "'{}' no", to);
    disk.rename(from, to);
  }
};

/// A disk on which one checkpoint cannot be renamed, and a file of another not removed.
class KeepsTwo final : public ThroughDisk {
 public:
  void rename(const std::string& from, const std::string& to) override {
    if (from.ends_with("step-2")) base::fail(ErrorKind::checkpoint, "'{}' no name", from);
    disk.rename(from, to);
  }
  void remove_file(const std::string& path) override {
    if (path.find("step-1.tmp-") != std::string::npos) {
      base::fail(ErrorKind::checkpoint, "'{}' not removed", path);
    }
    disk.remove_file(path);
  }
};

/// A disk that accepts a manifest but does not store it.
class LosesManifest final : public ThroughDisk {
 public:
  [[nodiscard]] std::unique_ptr<base::OutputFile> create_file(const std::string& path) override {
    return disk.create_file(path.ends_with("manifest.json") ? path + ".lost" : path);
  }
};

TEST_CASE("A manifest that cannot be read back is not committed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  LosesManifest files;
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { save_example(files, checkpoints, 4, 1); }),
             Names("manifest.json"));
  CHECK(list_steps(checkpoints).empty());
}

TEST_CASE("If the rename fails, the older checkpoint of the step keeps its name") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  save_example(disk, checkpoints, 4, 1);
  KeepsTemporary files;
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { save_example(files, checkpoints, 4, 2); }),
             Contains("step-4' no"));
  CHECK(list_steps(checkpoints) == Steps{4});
  CHECK(dtrain::testing::verify_all(folder.path("step-4")).mesh.num_ranks() == 1);
  CHECK(folder.names() ==
        std::set<std::string>{"step-4", std::string("step-4.tmp-") + kExampleRun});
}

TEST_CASE("A failed removal is reported and does not prevent others") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  for (std::int64_t step = 1; step <= 5; ++step) save_example(disk, checkpoints, step, 1);
  KeepsTwo files;
  const PruneResult removed = prune(files, checkpoints, {.keep_last = 2}, kExampleRun);
  REQUIRE(removed.failures.size() == 2);
  CHECK_THAT(removed.failures[0], Contains("step-2' no name"));
  CHECK_THAT(removed.failures[1], Contains("step-1.tmp-") && Contains("not removed"));
  CHECK(list_steps(checkpoints) == Steps{5, 4, 2});
  CHECK_FALSE(folder.names().contains(std::string("step-3.tmp-") + kExampleRun));
  CHECK_THAT(message_of(ErrorKind::checkpoint,
                        [&] { std::ignore = remove_all(files, checkpoints, kExampleRun); }),
             Contains("step-2' no name"));
}

TEST_CASE("A failed sync after the rename leaves a complete checkpoint") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  format::Manifest manifest = half_written(checkpoints);
  format::merge(manifest.contents, dtrain::testing::save_example_shard(disk, checkpoints, 5, 0, 2));
  FailsAfterRename files;
  CHECK_THAT(commit(files, checkpoints, manifest), Contains("not synced"));
  CHECK(dtrain::testing::example_difference(folder.path("step-5"), 5).empty());
}

TEST_CASE("The newest checkpoints and kept multiples stay, the others are removed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  for (const std::int64_t step : {10, 20, 25, 30, 40, 50}) save_example(disk, checkpoints, step, 1);
  CHECK(prune(disk, checkpoints, {.keep_last = 6}, kExampleRun).steps.empty());
  CHECK(prune(disk, checkpoints, {.keep_last = 2, .keep_every = 20}, kExampleRun).steps ==
        Steps{30, 25, 10});
  CHECK(list_steps(checkpoints) == Steps{50, 40, 20});
  CHECK(folder.count() == 3);
  CHECK(prune(disk, checkpoints, {.keep_last = 2}, kExampleRun).steps == Steps{20});
  for (const std::int64_t step : {40, 50}) {
    CHECK(dtrain::testing::example_difference(folder.path(checkpoint_name(step)), step).empty());
  }
}

TEST_CASE("Checkpoints after the run's newest step are neither counted nor removed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  for (const std::int64_t step : {1, 2, 3, 70, 80}) save_example(disk, checkpoints, step, 1);
  CHECK(prune(disk, checkpoints, {.keep_last = 2, .newest_step = 3}, kExampleRun).steps ==
        Steps{1});
  CHECK(list_steps(checkpoints) == Steps{80, 70, 3, 2});
}

TEST_CASE("A leftover that cannot be removed is reported, and the others are removed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  folder.write("step-5" + kLeft + "/folder/file", "x");
  folder.write("step-6" + kLeft, "a file");
  folder.write("step-7" + kLeft + "/model-00001-of-00001.safetensors", "x");
  const auto failures = remove_leftovers(disk, checkpoints);
  REQUIRE(failures.size() == 2);
  CHECK_THAT(failures[0] + failures[1],
             Contains("step-5" + kLeft + "' holds 'folder'") && Contains("step-6" + kLeft));
  CHECK(folder.names() == std::set<std::string>{"step-5" + kLeft, "step-6" + kLeft});
}

TEST_CASE("Only folders written by dtrain are removed, and links are not followed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("run");
  disk.make_folder(checkpoints);
  for (std::int64_t step = 1; step <= 8; ++step) save_example(disk, checkpoints, step, 1);
  const auto in_run = [&](const char* name) { return "run/" + std::string(name); };
  std::filesystem::rename(folder.path("run/step-1"), folder.path("elsewhere"));
  std::filesystem::create_directory_symlink(folder.path("elsewhere"), folder.path("run/step-1"));
  folder.write(in_run("step-2/notes.txt"), "mine");
  std::filesystem::create_directory(folder.path("run/step-3/model-00001-of-00001.safetensors.old"));
  folder.write(in_run("step-4/manifest.json"), "{}");
  std::filesystem::remove(folder.path("run/step-5/manifest.json"));
  const std::string link = "step-9" + kLeft;
  std::filesystem::create_directory_symlink(folder.path("elsewhere"), folder.path("run/" + link));
  const PruneResult removed = prune(disk, checkpoints, {.keep_last = 1}, kExampleRun);
  CHECK(removed.steps == Steps{7, 6});
  REQUIRE(removed.left_alone.size() == 5);
  for (std::size_t index = 0; index < 5; ++index) {
    CHECK_THAT(removed.left_alone[index],
               Contains(checkpoint_name(5 - static_cast<std::int64_t>(index))));
  }
  CHECK_THAT(removed.left_alone[3], Names("notes.txt"));
  CHECK(remove_leftovers(disk, checkpoints).size() == 1);
  CHECK(remove_all(disk, checkpoints, kExampleRun).size() == 5);
  CHECK(folder.names("run") ==
        std::set<std::string>{"step-1", "step-2", "step-3", "step-4", "step-5", link});
  CHECK(dtrain::testing::example_difference(folder.path("elsewhere"), 1).empty());
  CHECK(dtrain::testing::example_difference(folder.path("run/step-2"), 2).empty());
}

TEST_CASE("Only leftovers of killed runs are removed") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  save_example(disk, checkpoints, 4, 1);
  folder.write("step-5" + kLeft + "/model-00001-of-00002.safetensors", "x");
  folder.write("step-5" + kLeft + "/optimizer-00001-of-00002-part2.safetensors", "x");
  folder.write("step-5" + kLeft + "/manifest.json", "x");
  std::filesystem::create_directory(folder.path("step-6" + kLeft));
  folder.write("step-4.superseded-b/model", "x");
  folder.write("mine" + kLeft + "/file", "x");
  folder.write("step-x" + kLeft + "/file", "x");
  folder.write("step-4.tmp-mine/model-00001-of-00001.safetensors", "x");
  CHECK(remove_leftovers(disk, checkpoints).empty());
  CHECK(folder.names() == std::set<std::string>{"step-4", "step-4.superseded-b", "mine" + kLeft,
                                                "step-x" + kLeft, "step-4.tmp-mine"});
  CHECK(dtrain::testing::example_difference(folder.path("step-4"), 4).empty());
  CHECK_NOTHROW(remove_leftovers(disk, folder.path("absent")));
  CHECK_NOTHROW(remove_folder_and_files(disk, folder.path("absent")));
}

TEST_CASE("A quarantined checkpoint is found by its step") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  for (const std::int64_t step : {1, 2, 20}) save_example(disk, checkpoints, step, 1);
  CHECK_FALSE(is_quarantined(checkpoints, 2));
  CHECK(quarantine_after(disk, checkpoints, 1, kExampleRun, {20}).paths.size() == 1);
  CHECK(is_quarantined(checkpoints, 2));
  for (const std::int64_t step : {1, 20}) CHECK_FALSE(is_quarantined(checkpoints, step));
  CHECK(list_steps(checkpoints) == Steps{20, 1});
}

TEST_CASE("Checkpoints after the one that a run resumes from are quarantined intact") {
  const TempFolder folder;
  const std::string checkpoints = folder.path("");
  for (const std::int64_t step : {1, 2, 3}) save_example(disk, checkpoints, step, 1);
  CHECK(quarantine_after(disk, checkpoints, 3, "r").paths.empty());
  const auto paths = quarantine_after(disk, checkpoints, 1, "r").paths;
  REQUIRE(paths.size() == 2);
  CHECK(list_steps(checkpoints) == Steps{1});
  CHECK(std::filesystem::path(paths[0]).filename() == "step-3.superseded-r");
  CHECK(dtrain::testing::example_difference(paths[0], 3).empty());
  CHECK(dtrain::testing::example_difference(paths[1], 2).empty());
  save_example(disk, checkpoints, 2, 1);
  CHECK(list_steps(checkpoints) == Steps{2, 1});
}

}  // namespace
}  // namespace dtrain::checkpoint::store::commit_test
