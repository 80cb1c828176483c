#include "dtrain/checkpoint/format/manifest.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "dtrain/base/checksum.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::format::manifest_test {
namespace {

using base::checksum_of;
using base::checksum_text;
using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using Json = nlohmann::json;

const std::string kPath = "run/step-7/manifest.json";

/// Two tensors in three pieces and two files.
Manifest example() {
  Contents contents;
  contents.tensors["model.w"] = {.dtype = Dtype::bf16, .shape = {4, 3}};
  contents.tensors["step"] = {.dtype = Dtype::i64, .shape = {}};
  contents.files.push_back({.name = "model-00001-of-00002.safetensors",
                            .bytes = 120,
                            .checksum = 1,
                            .pieces = {{"model.w", {{0, 0}, {2, 3}}, 2}, {"step", {}, 3}}});
  contents.files.push_back({.name = "model-00002-of-00002.safetensors",
                            .bytes = 112,
                            .checksum = 0xfedcba9876543210,
                            .pieces = {{"model.w", {{2, 0}, {2, 3}}, 5}}});
  return {.step = 7,
          .samples = 56,
          .tokens = 7168,
          .run = "20240607-ab",
          .mesh = {{config::Axis::dp, 2}},
          .config = R"({"data":{"path":"a \"b\".txt"},"train":{"lr":0.001,"steps":10}})",
          .data_fingerprint = "0123456789abcdef",
          .contents = contents};
}

std::string refusal(std::string_view text) {
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { std::ignore = parse_manifest(text, kPath); });
  CHECK_THAT(message, Contains(kPath));
  return message;
}

/// The manifest after a change of its JSON, with a correct checksum.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(to_text(example()));
  json.erase("xxh3");
  change(json);
  const std::string body = json.dump().substr(1);
  return R"({"xxh3": ")" + checksum_text(checksum_of(body)) + "\"," + body;
}

std::string refused(const std::function<void(Json&)>& change) { return refusal(changed(change)); }

TEST_CASE("A manifest is read back as it was written") {
  const Manifest manifest = example();
  CHECK(parse_manifest(to_text(manifest), kPath) == manifest);
  CHECK(parse_manifest(changed([](Json&) {}), kPath) == manifest);
  CHECK(parse_contents(to_text(manifest.contents)) == manifest.contents);
  CHECK(parse_contents(to_text(Contents{})) == Contents{});
}

TEST_CASE("Checksums match xxHash's command-line program") {
  // printf '' | xxhsum -H3; printf abc | xxhsum -H3
  CHECK(checksum_text(checksum_of(std::string_view())) == "2d06800538d394c2");
  CHECK(checksum_text(checksum_of(std::string_view("abc"))) == "78af5f94892f3950");
  CHECK(checksum_text(0x1f) == "000000000000001f");
  const std::string text(100'000, 'x');
  base::Checksum pieces;
  for (std::size_t at = 0; at < text.size(); at += 777) {
    pieces.add(
        std::as_bytes(std::span(text).subspan(at, std::min<std::size_t>(777, 100'000 - at))));
  }
  CHECK(pieces.value() == checksum_of(text));
}

TEST_CASE("A manifest with any flipped bit is rejected by name") {
  const std::string text = to_text(example());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    INFO("bit " << bit);
    refusal(dtrain::testing::flipped(text, bit));
  }
}

TEST_CASE("A manifest of another version or program is rejected as such") {
  CHECK_THAT(refused([](Json& json) { json["version"] = 2; }),
             Contains("version 2") && Contains("reads 1"));
  CHECK_THAT(refused([](Json& json) { json["format"] = "other"; }), Contains("another program"));
  CHECK_THAT(refused([](Json& json) { json["scaler"] = Json::object(); }), Contains("scaler"));
}

TEST_CASE("Unknown or missing fields and fields of another type are rejected") {
  const std::vector<const char*> objects{"", "/layout", "/tensors/step", "/files/0",
                                         "/files/0/pieces/0"};
  const Json whole = Json::parse(changed([](Json&) {}));
  for (const std::string object : objects) {
    INFO(object);
    CHECK_THAT(refused([&](Json& json) { json[Json::json_pointer(object + "/more")] = 1; }),
               Names("keys"));
    for (const auto& [name, value] : whole.at(Json::json_pointer(object)).items()) {
      if (name == "xxh3" && object.empty()) continue;
      INFO(name);
      const Json::json_pointer field(object + "/" + name);
      CHECK_THAT(
          refused([&, key = name](Json& json) { json.at(Json::json_pointer(object)).erase(key); }),
          Contains(fmt::format("lacks \"{}\"", name)));
      refused([&](Json& json) { json[field] = true; });
      refused([&](Json& json) { json[field] = -1; });
      refused([&](Json& json) { json[field] = 1.5; });
    }
  }
}

TEST_CASE("A layout whose axes do not multiply to its world size is rejected") {
  for (const std::int64_t size : {0, 1, 3, 4}) {
    CHECK_THAT(refused([&](Json& json) { json["layout"]["dp"] = size; }), Names("layout"));
  }
}

TEST_CASE("Invalid sizes and checksums are rejected") {
  for (const Json& value : {Json(-1), Json(1.0), Json("1"), Json(~std::uint64_t{0})}) {
    CHECK_THAT(refused([&](Json& json) { json["step"] = value; }), Contains("\"step\""));
    CHECK_THAT(refused([&](Json& json) { json["files"][0]["pieces"][0]["sizes"][0] = value; }),
               Contains("\"sizes\""));
  }
  for (const char* digits : {"", "12", "0x00000000000000", "-000000000000001", "000000000000000g",
                             "00000000000000001"}) {
    CHECK_THAT(refused([&](Json& json) { json["files"][0]["xxh3"] = digits; }),
               Contains("checksum"));
  }
}

TEST_CASE("Names with path separators or control characters are rejected") {
  for (const std::string name : {"", ".", "..", "../x", "a/b", "/x", "..\\x", ".hidden"}) {
    CHECK_THAT(refused([&](Json& json) { json["files"][0]["name"] = name; }),
               Contains("'" + name + "'"));
  }
  for (const std::string& name : {std::string("a\nb"), std::string("a\0b", 3)}) {
    CHECK_THAT(refused([&](Json& json) { json["files"][0]["name"] = name; }),
               Contains("control characters"));
    CHECK_THAT(refused([&](Json& json) { json["tensors"][name] = json["tensors"]["step"]; }),
               Contains("control characters"));
    CHECK_THAT(refused([&](Json& json) { json["files"][0]["pieces"][0]["tensor"] = name; }),
               Contains("control characters"));
  }
  refused([](Json& json) { json["files"][0]["name"] = std::string(256, 'x'); });
  refused([](Json& json) { json["tensors"][std::string(1025, 'x')] = json["tensors"]["step"]; });
}

TEST_CASE("Overlapping, missing, duplicate and out-of-range pieces are rejected") {
  const auto piece = [](Json& json) -> Json& { return json["files"][1]["pieces"][0]; };
  CHECK_THAT(refused([&](Json& json) {
               piece(json)["offsets"] = {1, 0};
             }),
             Contains("'model.w' overlap"));
  CHECK_THAT(refused([&](Json& json) {
               piece(json)["offsets"] = {3, 0};
             }),
             Names("model-00002-of-00002.safetensors", "model.w"));
  CHECK_THAT(refused([&](Json& json) {
               piece(json)["sizes"] = {1, 3};
             }),
             Names("model.w", "9 elements", 12));
  CHECK_THAT(refused([&](Json& json) { piece(json)["sizes"] = {2}; }), Contains("outside"));
  CHECK_THAT(refused([&](Json& json) { piece(json)["tensor"] = "absent"; }), Contains("'absent'"));
  CHECK_THAT(refused([&](Json& json) { json["tensors"]["model.v"] = json["tensors"]["model.w"]; }),
             Names("model.v", "0 elements"));
  CHECK_THAT(refused([&](Json& json) { json["files"][1]["name"] = json["files"][0]["name"]; }),
             Contains("listed twice"));
  CHECK_THAT(refused([&](Json& json) {
               piece(json)["sizes"] = {1, 3};
               json["files"][1]["pieces"].push_back(piece(json));
               json["files"][1]["pieces"][1]["offsets"] = {3, 0};
             }),
             Names("model-00002-of-00002.safetensors", "model.w", "two pieces"));
  CHECK_THAT(refused([&](Json& json) {  // a scalar twice
               json["files"][1]["pieces"].push_back(json["files"][0]["pieces"][1]);
             }),
             Contains("'step' overlap"));
}

TEST_CASE("Tensors of impossible size or unknown dtype are rejected by name") {
  const auto shape = [](std::vector<std::int64_t> sizes) {
    return refused([&](Json& json) { json["tensors"]["model.w"]["shape"] = sizes; });
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  CHECK_THAT(shape({kHuge, 4}), Names("model.w", "too large"));
  CHECK_THAT(shape({kHuge, 4, 0}), Names("model.w", "too large"));
  CHECK_THAT(shape(std::vector<std::int64_t>(17, 1)), Names("model.w", "dimensions"));
  CHECK_THAT(refused([](Json& json) { json["tensors"]["model.w"]["dtype"] = "F33"; }),
             Contains("'model.w'") && Contains("F33"));
}

TEST_CASE("A configuration that does not match its checksum is rejected") {
  CHECK_THAT(refused([](Json& json) { json["config"]["train"]["lr"] = 0.002; }),
             Contains("configuration"));
}

TEST_CASE("The ranks' contents are merged, and a conflict is reported by name") {
  Contents all;
  Contents part = example().contents;
  part.files.resize(1);
  merge(all, part);
  part = example().contents;
  part.files.erase(part.files.begin());
  merge(all, part);
  CHECK(all == example().contents);
  part.tensors["model.w"].shape = {4, 4};
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { merge(all, part); }), Contains("'model.w'"));
}

}  // namespace
}  // namespace dtrain::checkpoint::format::manifest_test
