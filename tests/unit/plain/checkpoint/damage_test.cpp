#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "support/example_checkpoint.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::damage_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using dtrain::testing::verify_all;

/// A checkpoint of two ranks, and its files by name.
class Damaged {
 public:
  Damaged() {
    base::Disk disk(ErrorKind::checkpoint);
    dtrain::testing::save_example(disk, folder_.path(""), 3, 2);
    names_ = folder_.names("step-3");
    manifest_ = verify_all(checkpoint());
  }

  [[nodiscard]] std::string checkpoint() const { return folder_.path("step-3"); }
  [[nodiscard]] const std::set<std::string>& names() const { return names_; }
  [[nodiscard]] std::string read(const std::string& name) const {
    return folder_.read("step-3/" + name);
  }
  void write(const std::string& name, const std::string& content) const {
    folder_.write("step-3/" + name, content);
  }

  [[nodiscard]] std::string path_of(const std::string& name) const {
    return checkpoint() + "/" + name;
  }

  /// Checks that the file is rejected by name.
  std::string refusal(const std::string& name) const {
    const std::string message = message_of(ErrorKind::checkpoint, [&] {
      if (name == kManifestName) {
        std::ignore = read_manifest(checkpoint());
      } else {
        const auto& files = manifest_.contents.files;
        verify_file(checkpoint(), *std::ranges::find(files, name, &format::FileInfo::name));
      }
    });
    CHECK_THAT(message, Contains(path_of(name)));
    return message;
  }

 private:
  TempFolder folder_;
  std::set<std::string> names_;
  format::Manifest manifest_;
};

TEST_CASE("Each of a thousand flipped bits in a checkpoint is rejected by file name") {
  const Damaged damaged;
  std::vector<std::pair<std::string, std::string>> files;
  std::size_t num_bytes = 0;
  for (const std::string& name : damaged.names()) {
    files.emplace_back(name, damaged.read(name));
    num_bytes += files.back().second.size();
  }
  CHECK(files.size() == 7);
  std::mt19937_64 random(20'240'607);
  for (int round = 0; round < 1000; ++round) {
    std::size_t at = random() % num_bytes;
    std::size_t index = 0;
    while (at >= files[index].second.size()) at -= files[index++].second.size();
    const auto& [name, content] = files[index];
    std::string changed = content;
    changed[at] = static_cast<char>(changed[at] ^ (1 << random() % 8));
    CAPTURE(name, at);
    damaged.write(name, changed);
    damaged.refusal(name);
    damaged.write(name, content);
  }
  CHECK_NOTHROW(verify_all(damaged.checkpoint()));
}

TEST_CASE("Truncated or extended files of a checkpoint are rejected by name") {
  const Damaged damaged;
  for (const std::string& name : damaged.names()) {
    const std::string content = damaged.read(name);
    for (std::size_t length = content.size(); length-- > 0;) {
      CAPTURE(name, length);
      std::filesystem::resize_file(damaged.path_of(name), length);
      const std::string message = damaged.refusal(name);
      if (name != kManifestName && length > 0) {
        CHECK_THAT(message, Names(fmt::format("{} bytes", length), content.size()));
      }
    }
    damaged.write(name, content + "x");
    damaged.refusal(name);
    damaged.write(name, content);
  }
}

TEST_CASE("Damage within a tensor is reported with the tensor's name") {
  const Damaged damaged;
  const std::string name = "optimizer-00002-of-00002.safetensors";
  std::string content = damaged.read(name);
  content.back() = static_cast<char>(content.back() ^ 1);  // narrow dtypes come last
  damaged.write(name, content);
  CHECK_THAT(damaged.refusal(name), Names("optimizer.columns"));
}

TEST_CASE("Missing files, folders and files of another checkpoint are rejected by name") {
  const Damaged damaged;
  for (const std::string& name : damaged.names()) {
    const std::string content = damaged.read(name);
    const std::string path = damaged.path_of(name);
    std::filesystem::remove(path);
    damaged.refusal(name);
    std::filesystem::create_directory(path);
    damaged.refusal(name);
    std::filesystem::remove(path);
    damaged.write(name, content);
  }
  const std::string first = "optimizer-00001-of-00002.safetensors";
  damaged.write(first, damaged.read("optimizer-00002-of-00002.safetensors"));
  damaged.refusal(first);
}

TEST_CASE("An empty or oversized manifest is rejected before it is read") {
  const Damaged damaged;
  const std::string name(kManifestName);
  constexpr std::uintmax_t kTooLarge = (std::uintmax_t{1} << 30) + 1;
  std::filesystem::resize_file(damaged.path_of(name), 0);
  CHECK_THAT(damaged.refusal(name), Contains("is empty"));
  std::filesystem::resize_file(damaged.path_of(name), kTooLarge);  // a sparse file
  CHECK_THAT(damaged.refusal(name), Contains("too large") && Names(kTooLarge));
}

TEST_CASE("A folder without a manifest is rejected by the manifest's name") {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("step-1"));
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { verify_all(folder.path("step-1")); }),
             Contains(folder.path("step-1/manifest.json")));
}

}  // namespace
}  // namespace dtrain::checkpoint::store::damage_test
