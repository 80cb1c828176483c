#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>

#include "dtrain/base/file_system.h"
#include "support/temp_folder.h"

namespace dtrain::base::new_folders_test {
namespace {

namespace fs = std::filesystem;
using dtrain::testing::TempFolder;

TEST_CASE("Created folders are removed, existing ones stay") {
  const TempFolder folder;
  fs::create_directory(folder.path("there"));
  std::error_code error;
  {
    NewFolders made;
    CHECK(made.add(folder.path("there/a/b/"), error));
    CHECK_FALSE(made.add(folder.path("there/a"), error));
    CHECK(made.add(folder.path("there/c"), error));
    CHECK(fs::is_directory(folder.path("there/a/b")));
  }
  CHECK(fs::is_empty(folder.path("there")));
}

TEST_CASE("Kept or non-empty folders stay") {
  const TempFolder folder;
  std::error_code error;
  {
    NewFolders kept;
    kept.add(folder.path("kept/a"), error);
    kept.keep();
    NewFolders full;
    full.add(folder.path("full/a"), error);
    folder.write("full/a/file", "x");
  }
  CHECK(fs::is_directory(folder.path("kept/a")));
  CHECK(folder.read("full/a/file") == "x");
}

TEST_CASE("Creating a folder below a file fails and leaves nothing") {
  const TempFolder folder;
  const std::string file = folder.write("file", "x");
  std::error_code error;
  {
    NewFolders made;
    CHECK_FALSE(made.add(file + "/a", error));
  }
  CHECK(error);
  CHECK(folder.read("file") == "x");
}

TEST_CASE("Only the new owner removes moved folders") {
  const TempFolder folder;
  std::error_code error;
  auto first = std::make_unique<NewFolders>();
  first->add(folder.path("a"), error);
  auto second = std::make_unique<NewFolders>(std::move(*first));
  first.reset();
  CHECK(fs::exists(folder.path("a")));
  second.reset();
  CHECK_FALSE(fs::exists(folder.path("a")));
}

}  // namespace
}  // namespace dtrain::base::new_folders_test
