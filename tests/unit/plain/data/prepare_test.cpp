#include "dtrain/data/prepare.h"

#include <cerrno>
#include <cstring>

#include "dtrain/data/tokens/token_file.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::prepare_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

std::string content_of(const std::string& path) {
  const auto file = TokenFile::open(path, 256);
  std::string text;
  for (std::int64_t i = 0; i < file.size(); ++i) text.push_back(static_cast<char>(file[i]));
  return text;
}

TEST_CASE("Files and folders become one token file, folders sorted by path") {
  const TempFolder folder;
  folder.write("in/b.txt", "second ");
  folder.write("in/a/z.txt", "first ");
  folder.write("in/empty.txt", "");
  folder.write("in/c.txt", "third ");
  std::filesystem::create_symlink(folder.path("in/b.txt"), folder.path("in/link.txt"));
  const std::string alone = folder.write("alone.txt", "zeroth ");
  const std::string output = folder.path("out.tok");
  const PrepareReport report =
      prepare({.inputs = {alone, folder.path("in")}, .output = output}).front();
  CHECK(report.num_files == 4);
  CHECK(report.num_tokens == 30);
  CHECK(content_of(output) == "zeroth \nfirst \nsecond \nthird \n");
}

TEST_CASE("Links in a folder are followed, once per file, and skipped entries are counted") {
  namespace fs = std::filesystem;
  const TempFolder folder;
  folder.write("blobs/1", "one ");
  folder.write("blobs/2", "two ");
  folder.write("far/c/d.txt", "four ");
  folder.write("in/b.txt", "three ");
  folder.write("in/.hidden", "no");
  folder.write("in/none", "");
  const auto link = [&](const std::string& target, const std::string& name) {
    fs::create_symlink(target, folder.path("in/" + name));
  };
  link("../blobs/2", "a.txt");
  link("../blobs/1", "z.txt");
  link("../blobs", "zz");    // both files have links already
  link("b.txt", "a_b.txt");  // a link to a file in the same folder
  link("../far", "far");
  link(".", "loop");
  link("nowhere", "broken");
  link("self", "self");
  fs::create_symlink("../../in", folder.path("far/c/back"));
  const InputFiles files = list_inputs({folder.path("in")});
  CHECK(files.paths == std::vector{folder.path("in/a.txt"), folder.path("in/b.txt"),
                                   folder.path("in/far/c/d.txt"), folder.path("in/z.txt")});
  CHECK(files.num_links == 4);
  CHECK(files.num_known_links == 3);
  CHECK(files.num_hidden == 1);
  CHECK(files.num_empty == 1);
  CHECK(files.num_broken_links == 2);
  CHECK(list_inputs({folder.path("blobs")}).notes().empty());
  CHECK_FALSE(files.notes().empty());
}

TEST_CASE("A folder is read once even if a link leads to its parent") {
  const TempFolder folder;
  folder.write("top/in/a", "a");
  folder.write("top/b", "b");
  std::filesystem::create_symlink("..", folder.path("top/in/up"));
  CHECK(list_inputs({folder.path("top/in")}).paths ==
        std::vector{folder.path("top/in/a"), folder.path("top/in/up/b")});
}

TEST_CASE("An existing output is kept unless overwriting is requested") {
  const TempFolder folder;
  const std::string input = folder.write("in", "text");
  const std::string output = folder.write("out", "precious");
  CHECK_THAT(message_of(ErrorKind::usage, [&] { prepare({.inputs = {input}, .output = output}); }),
             Contains(output) && Contains("--overwrite"));
  CHECK(folder.read("out") == "precious");
  prepare({.inputs = {input}, .output = output, .overwrite = true});
  CHECK(content_of(output) == "text");
}

TEST_CASE("A text is never overwritten by its own tokens") {
  const TempFolder folder;
  const std::string text = folder.write("in/text", "precious");
  for (const std::string& input : {text, folder.path("in")}) {
    CHECK_THAT(message_of(ErrorKind::usage,
                          [&] { prepare({.inputs = {input}, .output = text, .overwrite = true}); }),
               Names(text, "inputs"));
  }
  CHECK(folder.read("in/text") == "precious");
}

TEST_CASE(
    "A tokenizer never overwrites its own text, and detects a missing folder before reading") {
  const TempFolder folder;
  const std::string text = folder.write("in/text", "precious");
  const auto refusal = [&](ErrorKind kind, const std::string& output) {
    return message_of(kind, [&] {
      train_tokenizer(
          {.texts = {.inputs = {folder.path("in")}, .output = output, .overwrite = true},
           .vocab = 300});
    });
  };
  CHECK_THAT(refusal(ErrorKind::usage, text), Names(text, "inputs"));
  CHECK(folder.read("in/text") == "precious");
  CHECK_THAT(refusal(ErrorKind::usage, folder.path("in")), Names(folder.path("in"), "directory"));
  folder.write("in/text", "not UTF-8: \xff");  // an error if it were read
  CHECK_THAT(refusal(ErrorKind::data, folder.path("no/out")), Contains(folder.path("no/out")));
}

TEST_CASE("A tokenizer is trained only on WikiText's training part") {
  const TempFolder folder;
  const std::string train = folder.write("raw/wiki.train.raw", "x");
  folder.write("raw/wiki.test.raw", "y");
  const PrepareOptions options{.inputs = {folder.path("raw")}, .is_wikitext = true};
  CHECK(training_texts(options).paths == std::vector<std::string>{train});
}

TEST_CASE("A bad input is named and no output appears") {
  const TempFolder folder;
  const std::string good = folder.write("good", "text");
  const std::string output = folder.path("out");
  const auto refusal = [&](const std::string& bad) {
    const std::string message = message_of(ErrorKind::data, [&] {
      prepare({.inputs = {good, bad}, .output = output});
    });
    CHECK_THAT(message, Contains(bad));
    CHECK(folder.count() <= 2);
    return message;
  };
  refusal(folder.path("missing"));
  CHECK_THAT(refusal(folder.write("bad", "")), Contains("empty"));
  CHECK_THAT(refusal(folder.write("bad", "\x1f\x8b\x08")), Contains("gzip"));
  CHECK_THAT(refusal(folder.write("bad",
                                  "\x89"
                                  "DTOK\r\n\x1a")),
             Contains("token file"));
}

TEST_CASE("An empty list of inputs is a usage error") {
  const TempFolder folder;
  const std::string output = folder.path("out");
  std::filesystem::create_directory(folder.path("in"));
  message_of(ErrorKind::usage, [&] { prepare({.inputs = {}, .output = output}); });
  message_of(ErrorKind::usage, [&] { prepare({.inputs = {folder.path("in")}, .output = output}); });
  CHECK_FALSE(std::filesystem::exists(output));
}

TEST_CASE("An output that cannot be written is named") {
  const TempFolder folder;
  const std::string input = folder.write("in", "text");
  CHECK_THAT(message_of(ErrorKind::data,
                        [&] { prepare({.inputs = {input}, .output = folder.path("no/out")}); }),
             Contains(folder.path("no/out")));
  CHECK_THAT(
      message_of(
          ErrorKind::usage,
          [&] { prepare({.inputs = {input}, .output = folder.path(""), .overwrite = true}); }),
      Names(folder.path(""), "directory"));
}

TEST_CASE("An output folder that cannot be created is named with the reason") {
  const TempFolder folder;
  folder.write("raw/wiki.train.raw", " = A = \n");
  std::filesystem::create_symlink("nowhere", folder.path("link"));
  for (const std::string& output : {folder.write("file", ""), folder.path("link")}) {
    const std::string message = message_of(ErrorKind::data, [&] {
      prepare({.inputs = {folder.path("raw")}, .output = output, .is_wikitext = true});
    });
    CHECK_THAT(message, Names(output) && Contains(std::strerror(EEXIST)));
  }
}

}  // namespace
}  // namespace dtrain::data::prepare_test
