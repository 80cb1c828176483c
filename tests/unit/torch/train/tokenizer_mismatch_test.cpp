#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/train/model_file.h"
#include "support/messages.h"
#include "support/safetensors.h"
#include "support/temp_folder.h"

namespace dtrain::train::tokenizer_mismatch_test {
namespace {

using data::TokenizerKind;
using testing::Names;
using testing::TempFolder;

constexpr const char* kOwn = "{\"a\": 1}";
constexpr const char* kOther = "{\"b\": 2}";

// A model file of one tensor, which names this tokenizer unless it is empty.
std::string write_model(const TempFolder& folder, const std::string& tokenizer) {
  const std::vector<std::byte> bytes(sizeof(float));
  const std::vector<checkpoint::format::TensorView> tensors{
      {.name = "encoder", .dtype = checkpoint::format::Dtype::f32, .shape = {1}, .bytes = bytes}};
  const std::string path = folder.path("model.safetensors");
  testing::write_safetensors(path, tensors, tokenizer_metadata(tokenizer));
  return path;
}

std::string mismatch(const std::string& weights, std::int64_t vocab, const std::string& tokenizer) {
  return check_tokenizer_of_data({.flag = "--from x",
                                  .weights = weights,
                                  .vocab = vocab,
                                  .data = "data file 'y'",
                                  .tokenizer = tokenizer});
}

const std::string kOwnIdentity = data::identity_of(TokenizerKind::hugging_face, kOwn);
const std::string kOtherIdentity = data::identity_of(TokenizerKind::hugging_face, kOther);
const std::string kBytes = data::identity_of(TokenizerKind::bytes, {});
const std::string kUnknown = data::identity_of(TokenizerKind::unknown, {});

TEST_CASE("A tokenizer that the model records excludes data of others, unless theirs is unknown") {
  const TempFolder folder;
  const std::string path = write_model(folder, kOwnIdentity);
  CHECK(mismatch(path, 400, kOwnIdentity).empty());
  CHECK(mismatch(path, 400, kUnknown).empty());
  for (const std::string& other : {kOtherIdentity, kBytes}) {
    CHECK_THAT(mismatch(path, 400, other), Names("--from", path, kOwnIdentity, "'y'", other));
  }
}

TEST_CASE("A model of 256 tokens without a tokenizer has byte tokens, and a larger one any") {
  const TempFolder folder;
  const std::string path = write_model(folder, {});
  CHECK(mismatch(path, 256, kBytes).empty());
  CHECK(mismatch(path, 257, kOwnIdentity).empty());
  CHECK_THAT(mismatch(path, 256, kOwnIdentity), Names("--from", path, "bytes", kOwnIdentity));
}

TEST_CASE("A tokenizer.json beside a model that records none excludes no data") {
  const TempFolder folder;
  const std::string path = write_model(folder, {});
  (void)folder.write("tokenizer.json", kOwn);
  for (const std::string& tokenizer : {kOwnIdentity, kOtherIdentity, kBytes, kUnknown}) {
    CHECK(mismatch(path, 256, tokenizer).empty());
  }
}

TEST_CASE("A tokenizer.model beside a model that records none excludes no SentencePiece data") {
  const TempFolder folder;
  const std::string path = write_model(folder, {});
  (void)folder.write("tokenizer.model", "pieces");
  for (const char* model : {"pieces", "other pieces"}) {
    const std::string tokenizer = data::identity_of(TokenizerKind::sentencepiece, model);
    CHECK(mismatch(path, 256, tokenizer).empty());
  }
  CHECK(mismatch(path, 256, kBytes).empty());
  CHECK_THAT(mismatch(path, 256, kOwnIdentity), Names("--from", path, "bytes", kOwnIdentity));
}

}  // namespace
}  // namespace dtrain::train::tokenizer_mismatch_test
