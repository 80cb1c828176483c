#include "dtrain/data/split.h"
#include "support/temp_folder.h"

namespace dtrain::data::identity_test {
namespace {

using testing::TempFolder;

DataIdentity identity_of(const SplitOptions& options) { return identify(open_split(options)); }

TEST_CASE("Data differs by any token, by the part that is used, and by the validation data") {
  const TempFolder folder;
  const std::string text(1000, 'a');
  const std::string path = folder.write("text", text);
  const DataIdentity whole = identity_of({.train = path, .seq_len = 8});
  CHECK(whole.validation == "none");
  CHECK(identity_of({.train = folder.write("copy", text), .seq_len = 8}).training ==
        whole.training);
  std::string other = text;
  other[777] = 'b';
  CHECK(identity_of({.train = folder.write("other", other), .seq_len = 8}).training !=
        whole.training);
  const DataIdentity part = identity_of({.train = path, .val_fraction = 0.1, .seq_len = 8});
  CHECK(part.training != whole.training);
  CHECK(part.validation.find("tokens 900 to 1000") != std::string::npos);
  const DataIdentity two =
      identity_of({.train = path, .validation = folder.path("other"), .seq_len = 8});
  CHECK(two.training == whole.training);
  CHECK(two.validation == identity_of({.train = folder.path("other"), .seq_len = 8}).training);
}

TEST_CASE("A mixture differs by any token of any file, and by its weights") {
  const TempFolder folder;
  const std::string a = folder.write("a", std::string(1000, 'a'));
  const std::string b = folder.write("b", std::string(500, 'b'));
  const std::string c = folder.write("c", std::string(499, 'b') + "c");
  const auto training = [&](const std::string& text) {
    return identity_of({.train = text, .validation = b, .seq_len = 8}).training;
  };
  const std::string found = training(a + ":0.7," + b + ":0.3");
  CHECK(training(a + ":7," + b + ":3") == found);
  CHECK(training(a + ":0.7," + c + ":0.3") != found);
  CHECK(training(a + ":0.6," + b + ":0.4") != found);
  CHECK(training(a) != found);
  CHECK(identity_of({.train = a + ":1," + b + ":1", .validation = b, .seq_len = 8}).validation ==
        training(b));
}

TEST_CASE("An identity survives the checkpoint that keeps it") {
  const DataIdentity identity{.training = "3 samples, tokens 0 to 25", .validation = "none"};
  const DataIdentity back = identity_from(to_text(identity));
  CHECK(back.training == identity.training);
  CHECK(back.validation == identity.validation);
  CHECK_FALSE(is_without_checksum(back.training));
}

TEST_CASE("What checkpoints kept before there were checksums is recognised") {
  const DataIdentity old = identity_from("515 samples, fingerprint 0123456789abcdef");
  CHECK(old.training == "515 samples, fingerprint 0123456789abcdef");
  CHECK(old.validation.empty());
  CHECK(is_without_checksum(old.training));
}

}  // namespace
}  // namespace dtrain::data::identity_test
