#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/checkpoint/store/names.h"
#include "support/example_checkpoint.h"
#include "support/forgetful_file_system.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::power_loss_test {
namespace {

using dtrain::testing::bytes_of;
using dtrain::testing::ForgetfulFileSystem;
using dtrain::testing::kExampleRun;
using dtrain::testing::PowerLoss;
using dtrain::testing::Remains;
using dtrain::testing::Survival;
using dtrain::testing::TempFolder;
using dtrain::testing::write_remains;
using Kind = ForgetfulFileSystem::Operation::Kind;

TEST_CASE("Files and names survive a power loss as far as they were synced") {
  const TempFolder folder;
  folder.write("run/old", "old");
  ForgetfulFileSystem files(folder.path("run"));
  int number = 0;
  const auto after_loss = [&](Survival survival) {
    const std::string name = "after-" + std::to_string(number++);
    write_remains(files.remains({.after = files.operations().size(), .survival = survival}),
                  folder.path(name));
    return name;
  };
  const auto exists = [&](const std::string& name) {
    return std::filesystem::exists(folder.path(name));
  };
  const auto file = files.create_file(folder.path("run/new"));
  file->write(bytes_of("1234"));
  CHECK(folder.read(after_loss(Survival::nothing) + "/old") == "old");
  CHECK_FALSE(exists(after_loss(Survival::nothing) + "/new"));
  CHECK(exists(after_loss(Survival::names) + "/new"));
  CHECK(folder.read(after_loss(Survival::names) + "/new").empty());
  CHECK(folder.read(after_loss(Survival::names_half) + "/new") == "12");
  CHECK(folder.read(after_loss(Survival::names_zeros) + "/new") == std::string(4, '\0'));
  file->sync();
  CHECK_FALSE(exists(after_loss(Survival::nothing) + "/new"));
  CHECK(folder.read(after_loss(Survival::names) + "/new") == "1234");
  files.sync_folder(folder.path("run"));
  files.rename(folder.path("run/new"), folder.path("run/old"));
  CHECK(folder.read(after_loss(Survival::nothing) + "/new") == "1234");
  CHECK(folder.read(after_loss(Survival::nothing) + "/old") == "old");
  CHECK(folder.read(after_loss(Survival::names) + "/old") == "1234");
  CHECK_FALSE(exists(after_loss(Survival::names) + "/new"));
  files.remove_file(folder.path("run/old"));
  CHECK(exists(after_loss(Survival::nothing) + "/old"));
  CHECK_FALSE(exists(after_loss(Survival::names) + "/old"));
}

/// A run with step-1 that saves step-2 on two ranks and removes step-1.
class Saver {
 public:
  Saver() {
    base::Disk disk(base::ErrorKind::checkpoint);
    disk.make_folder(folder_.path("run"));
    disk.make_folder(checkpoints());
    dtrain::testing::save_example(disk, checkpoints(), 1, 2);
    files_ = std::make_unique<ForgetfulFileSystem>(folder_.path("run"));
    dtrain::testing::save_example(*files_, checkpoints(), 2, 2);
    committed_ = files_->operations().size();
    CHECK(prune(*files_, checkpoints(), {.keep_last = 1}, kExampleRun).steps.size() == 1);
  }

  [[nodiscard]] const std::vector<ForgetfulFileSystem::Operation>& operations() const {
    return files_->operations();
  }

  /// All simulated outcomes of a loss after that many operations.
  [[nodiscard]] static std::vector<PowerLoss> losses(std::size_t after) {
    std::vector<PowerLoss> result;
    for (const Survival survival :
         {Survival::nothing, Survival::names, Survival::names_half, Survival::names_zeros}) {
      result.push_back({.after = after, .survival = survival});
    }
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      result.push_back(
          {.after = after, .survival = Survival::by_chance, .seed = 100 * after + seed});
    }
    return result;
  }

  /// Returns the fault that the next start would find; "" if there is a complete checkpoint (step-2
  /// after its commit) and no incomplete one under a final name.
  [[nodiscard]] std::string fault_after(const PowerLoss& loss) {
    Remains remains = files_->remains(loss);
    const bool has_new = remains.contains("checkpoints/step-2");
    if (loss.after >= committed_ && !has_new) return "step-2 is gone";
    const auto known = faults_.find(remains);
    if (known != faults_.end()) return known->second;
    const std::string fault = fault_in(remains);
    return faults_.emplace(std::move(remains), fault).first->second;
  }

 private:
  [[nodiscard]] static std::string fault_in(const Remains& remains) {
    const TempFolder folder;
    write_remains(remains, folder.path("run"));
    const std::string found = checkpoints_folder(folder.path("run"));
    const std::vector<std::int64_t> steps = list_steps(found);
    if (steps.empty()) return "no checkpoint";
    for (const std::int64_t step : steps) {
      try {
        const std::string path = found + "/" + checkpoint_name(step);
        const std::string difference = dtrain::testing::example_difference(path, step);
        if (!difference.empty()) return difference;
      } catch (const base::Error& error) {
        return error.what();
      }
    }
    base::Disk disk(base::ErrorKind::checkpoint);
    remove_leftovers(disk, found);
    const auto left = std::distance(std::filesystem::directory_iterator(found), {});
    return left == std::ssize(steps) ? "" : "leftovers";
  }

  [[nodiscard]] std::string checkpoints() const { return checkpoints_folder(folder_.path("run")); }

  TempFolder folder_;
  std::unique_ptr<ForgetfulFileSystem> files_;
  std::size_t committed_ = 0;              // operations when commit() had returned
  std::map<Remains, std::string> faults_;  // found before
};

TEST_CASE("A power loss at any moment of a save leaves a complete old or new checkpoint") {
  Saver saver;
  CHECK(saver.operations().size() > 40);
  for (std::size_t after = 0; after <= saver.operations().size(); ++after) {
    for (const PowerLoss& loss : Saver::losses(after)) {
      CAPTURE(after, loss.survival, loss.seed);
      CHECK(saver.fault_after(loss) == "");
    }
  }
}

bool shows_fault(Saver& saver, std::size_t ignored) {
  // Before the rename there can be no fault.
  const auto renamed =
      std::ranges::find(saver.operations(), Kind::rename, &ForgetfulFileSystem::Operation::kind) -
      saver.operations().begin();
  for (auto after = std::max(ignored, static_cast<std::size_t>(renamed)) + 1;
       after <= saver.operations().size(); ++after) {
    for (PowerLoss loss : Saver::losses(after)) {
      loss.ignored_operation = ignored;
      if (!saver.fault_after(loss).empty()) return true;
    }
  }
  return false;
}

TEST_CASE("Each sync of a save is necessary to survive every power loss") {
  Saver saver;
  int num_syncs = 0;
  for (std::size_t i = 0; i < saver.operations().size(); ++i) {
    const auto& operation = saver.operations()[i];
    if (operation.kind != Kind::sync && operation.kind != Kind::sync_folder) continue;
    CAPTURE(i, operation.path);
    CHECK(shows_fault(saver, i));
    ++num_syncs;
  }
  CHECK(num_syncs == 6 + 1 + 3);  // data files, manifest, folders
}

}  // namespace
}  // namespace dtrain::checkpoint::store::power_loss_test
