#include "dtrain/base/io/file_system.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/storage_error.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::base::file_system_test {
namespace {

using Catch::Matchers::Contains;
using dtrain::testing::bytes_of;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
namespace fs = std::filesystem;

constexpr FileRole kRole{ErrorKind::data, "data file", "give another"};

/// The error message of a failing disk operation.
template <typename Operation>
std::string refusal(Operation operation) {
  Disk disk(ErrorKind::checkpoint);
  return message_of(ErrorKind::checkpoint, [&] { operation(disk); });
}

TEST_CASE("Files and folders are made, written, renamed and removed on the disk") {
  const TempFolder folder;
  Disk disk(ErrorKind::checkpoint);
  disk.make_folder(folder.path("a"));
  disk.make_folder(folder.path("a"));
  const auto file = disk.create_file(folder.path("a/f"));
  file->write(bytes_of("one "));
  file->write(bytes_of(""));
  file->write(bytes_of("two"));
  file->sync();
  file->close();
  disk.sync_folder(folder.path("a"));
  disk.rename(folder.path("a"), folder.path("b"));
  CHECK(folder.read("b/f") == "one two");
  CHECK(folder.count() == 1);
  disk.remove_file(folder.path("b/f"));
  disk.remove_file(folder.path("b/f"));
  disk.remove_folder(folder.path("b"));
  disk.remove_folder(folder.path("b"));
  CHECK(folder.count() == 0);
}

TEST_CASE("Disk errors name the path and the reason") {
  const TempFolder folder;
  const std::string file = folder.write("full/f", "x");
  const std::string absent = folder.path("absent/f");
  CHECK_THAT(refusal([&](Disk& disk) { std::ignore = disk.create_file(file); }),
             Names(file, std::strerror(EEXIST)));
  CHECK_THAT(refusal([&](Disk& disk) { std::ignore = disk.create_file(absent); }),
             Names(absent, std::strerror(ENOENT)));
  CHECK_THAT(refusal([&](Disk& disk) { disk.make_folder(absent); }), Contains(absent));
  CHECK_THAT(refusal([&](Disk& disk) { disk.sync_folder(absent); }), Contains(absent));
  CHECK_THAT(refusal([&](Disk& disk) { disk.sync_folder(file); }), Contains(file));
  CHECK_THAT(refusal([&](Disk& disk) { disk.rename(absent, folder.path("to")); }),
             Contains(folder.path("to")));
  CHECK_THAT(refusal([&](Disk& disk) { disk.remove_file(folder.path("full")); }),
             Contains(folder.path("full")));
  CHECK_THAT(refusal([&](Disk& disk) { disk.remove_folder(folder.path("full")); }),
             Contains(folder.path("full")));
  Disk(ErrorKind::checkpoint).make_folder(folder.path("new"));
  CHECK_THAT(refusal([&](Disk& disk) { disk.rename(folder.path("new"), folder.path("full")); }),
             Contains(folder.path("full")));
  CHECK(folder.read("full/f") == "x");
}

TEST_CASE("A file replaces the leftover of an earlier attempt") {
  const TempFolder folder;
  Disk disk(ErrorKind::checkpoint);
  const std::string path = folder.write("f", "half of i");
  folder.write("again1-f", "half");
  int tries = 0;
  write_with_retries(disk, path, [&](OutputFile& file) {
    if (tries++ == 0) throw StorageError("away");
    file.write(bytes_of("it"));
  });
  CHECK(folder.read("f") == "it");
  CHECK(folder.count() == 1);
}

TEST_CASE("A failed attempt leaves its space to the next one") {
  const TempFolder folder;
  Disk disk(ErrorKind::checkpoint);
  int tries = 0;
  write_with_retries(disk, folder.path("f"), [&](OutputFile& file) {
    CHECK(folder.count() == 1);
    file.write(bytes_of("it"));
    if (tries++ < 2) throw StorageError("full", ENOSPC);
  });
  CHECK(tries == 3);
  CHECK(folder.count() == 1);
}

TEST_CASE("A full disk is transient, a limit on file sizes is not") {
  CHECK(is_transient(ENOSPC));
  CHECK(is_transient(EDQUOT));
  CHECK_FALSE(is_transient(EFBIG));
  CHECK_THROWS_AS(fail_on_storage(ErrorKind::data, EDQUOT, "f"), StorageError);
  CHECK(message_of(ErrorKind::data, [] { fail_on_storage(ErrorKind::data, EFBIG, "f"); }) == "f");
}

TEST_CASE("A task that runs longer than the retry limit before it fails is retried") {
  const TempFolder folder;
  Disk disk(ErrorKind::checkpoint);
  int tries = 0;
  write_with_retries(disk, folder.path("f"), [&](OutputFile& file) {
    if (tries++ == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      throw StorageError("away", EMFILE);  // is retried for 1 s
    }
    file.write(bytes_of("it"));
  });
  CHECK(folder.read("f") == "it");
}

TEST_CASE("A task that never succeeds is abandoned") {
  int tries = 0;
  CHECK_THROWS_AS(retry_task([&](int number) {
                    CHECK(number == tries++);
                    throw StorageError("away", EMFILE);
                  }),
                  StorageError);
  CHECK(tries > 2);
}

TEST_CASE("A path's folder is the part before its last separator") {
  CHECK(parent_folder("a/b/c") == "a/b");
  CHECK(parent_folder("/a") == "/");
  CHECK(parent_folder("a") == ".");
}

TEST_CASE("Reads are positioned, and fail beyond the end") {
  const TempFolder folder;
  const std::string path = folder.write("f", "0123456789");
  InputFile file = InputFile::open(path, kRole);
  CHECK(file.size() == 10);
  std::string text(4, ' ');
  file.read(3, std::as_writable_bytes(std::span(text)));
  CHECK(text == "3456");
  CHECK_THAT(
      message_of(ErrorKind::data, [&] { file.read(8, std::as_writable_bytes(std::span(text))); }),
      Names("data file", path, "byte 10", "10 bytes"));
  InputFile moved = std::move(file);
  moved.read(0, std::as_writable_bytes(std::span(text)));
  CHECK(text == "0123");
}

TEST_CASE("Paths without a non-empty regular file are rejected, and FIFOs do not block") {
  const TempFolder folder;
  const auto check_refused = [&](const std::string& path) {
    const std::string message =
        message_of(ErrorKind::data, [&] { std::ignore = InputFile::open(path, kRole); });
    CHECK_THAT(message, Names(path));
  };
  REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0666) == 0);
  check_refused(folder.path("fifo"));
  check_refused(folder.path("absent"));
  check_refused(folder.path(""));
  check_refused(folder.write("empty", ""));
}

TEST_CASE("An atomic file is complete after commit") {
  const TempFolder folder;
  AtomicFile file(folder.path("a"), ErrorKind::data);
  file.write(bytes_of("one "));
  file.write(bytes_of("two"));
  CHECK_FALSE(std::filesystem::exists(folder.path("a")));
  file.commit();
  CHECK(folder.read("a") == "one two");
  CHECK(folder.count() == 1);
}

TEST_CASE("Without commit the old file stays and the temporary one is removed") {
  const TempFolder folder;
  folder.write("a", "old");
  {
    AtomicFile file(folder.path("a"), ErrorKind::data);
    file.write(bytes_of("new"));
  }
  CHECK(folder.read("a") == "old");
  CHECK(folder.count() == 1);
}

TEST_CASE("Two writers of one name do not disturb each other") {
  const TempFolder folder;
  AtomicFile first(folder.path("a"), ErrorKind::data);
  AtomicFile second(folder.path("a"), ErrorKind::data);
  first.write(bytes_of("first"));
  second.write(bytes_of("second"));
  first.commit();
  CHECK(folder.read("a") == "first");
  second.commit();
  CHECK(folder.read("a") == "second");
  CHECK(folder.count() == 1);
}

TEST_CASE("Temporary files of killed writers are removed, and nothing else") {
  const TempFolder folder;
  for (const char* name :
       {"a", "a.tmp-12-0", "a.tmp-12-1", "b.tmp-12-0", "xa.tmp-1-0", "a.tmp-mine"}) {
    folder.write(name, "x");
  }
  remove_temporaries_of(folder.path("a"), ErrorKind::data);
  CHECK(folder.count() == 4);
  CHECK(folder.read("a") == "x");
  CHECK(folder.read("b.tmp-12-0") == "x");
  CHECK(folder.read("a.tmp-mine") == "x");
  CHECK(folder.read("xa.tmp-1-0") == "x");
  CHECK_NOTHROW(remove_temporaries_of(folder.path("absent/a"), ErrorKind::data));
}

TEST_CASE("A file that cannot be created is named with the reason") {
  const TempFolder folder;
  const std::string path = folder.path("missing/a");
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { AtomicFile(path, ErrorKind::checkpoint); });
  CHECK_THAT(message, Names(path, std::strerror(ENOENT)));
}

TEST_CASE("A file that cannot grow is named and removed") {
  const TempFolder folder;
  const std::string path = folder.path("a");
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit on file size stands for a full disk; it holds for the whole process.
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
    try {
      AtomicFile file(path, ErrorKind::data);
      file.write(std::vector<std::byte>(10'000));
    } catch (const Error& error) {
      const std::string message = error.what();
      ::_exit(message.find(path) != std::string::npos &&
                      message.find("File too large") != std::string::npos
                  ? 3
                  : 4);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(folder.count() == 0);
}

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
}  // namespace dtrain::base::file_system_test
