#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "dtrain/checkpoint/store/reader.h"
#include "support/example_checkpoint.h"
#include "support/messages.h"
#include "support/safetensors.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::round_trip_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::ExampleShard;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using format::SafetensorsFile;

base::Disk disk(ErrorKind::checkpoint);

TEST_CASE("A checkpoint of 1, 2, 4 or 8 ranks is read by any other number, without excess bytes") {
  const TempFolder folder;
  for (const std::int64_t writers : {1, 2, 4, 8}) {
    dtrain::testing::save_example(disk, folder.path(""), writers, writers);
    const std::string path = folder.path("step-" + std::to_string(writers));
    CHECK(dtrain::testing::example_difference(path, writers).empty());
    for (const std::int64_t readers : {1, 2, 3, 4, 8, 16}) {
      CAPTURE(writers, readers);
      for (std::int64_t rank = 0; rank < readers; ++rank) {
        Reader reader(path);
        std::int64_t asked = 0;
        const ExampleShard expected(writers, rank, readers);
        for (const PieceBytes& piece : expected.pieces()) {
          CAPTURE(piece.tensor, piece.box.offsets);
          std::vector<std::byte> found(piece.bytes.size());
          reader.read(piece.tensor, piece.box, found);
          CHECK(std::ranges::equal(found, piece.bytes));
          asked += std::ssize(found);
        }
        CHECK(reader.bytes_read() == asked);
      }
    }
  }
}

TEST_CASE("Any box of a saved tensor is read across files") {
  const TempFolder folder;
  dtrain::testing::save_example(disk, folder.path(""), 1, 4);
  Reader reader(folder.path("step-1"));
  const ExampleShard whole(1, 0, 1);
  std::mt19937_64 random(7);
  const auto range = [&](std::int64_t size) {
    const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
    const auto most = static_cast<std::uint64_t>(size - begin);
    return std::pair(begin, 1 + static_cast<std::int64_t>(random() % most));
  };
  for (int round = 0; round < 300; ++round) {
    const PieceBytes& tensor = whole.pieces()[random() % 2];
    const auto [row, rows] = range(tensor.shape[0]);
    const auto [column, columns] = range(tensor.shape[1]);
    CAPTURE(tensor.tensor, row, rows, column, columns);
    std::vector<std::byte> found(static_cast<std::size_t>(4 * rows * columns));
    reader.read(tensor.tensor, {.offsets = {row, column}, .sizes = {rows, columns}}, found);
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto expected =
          tensor.bytes.subspan(static_cast<std::size_t>(4 * ((row + i) * tensor.shape[1] + column)),
                               static_cast<std::size_t>(4 * columns));
      CHECK(std::ranges::equal(
          expected,
          std::span(found).subspan(static_cast<std::size_t>(4 * i * columns), expected.size())));
    }
  }
}

TEST_CASE("Each rank's files are named as documented and contain a tensor at most once") {
  const TempFolder folder;
  dtrain::testing::save_example(disk, folder.path(""), 5, 2);
  CHECK(folder.names("step-5") ==
        std::set<std::string>{
            "manifest.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "optimizer-00001-of-00002-part2.safetensors", "optimizer-00001-of-00002.safetensors",
            "optimizer-00002-of-00002-part2.safetensors", "optimizer-00002-of-00002.safetensors"});
}

TEST_CASE("Files record the offsets of their pieces for torch.distributed.checkpoint") {
  const TempFolder folder;
  dtrain::testing::save_example(disk, folder.path(""), 5, 2);
  const auto file =
      SafetensorsFile::open(folder.path("step-5/optimizer-00002-of-00002.safetensors"));
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.metadata().at("DCP_VERSION") == "1.0");
  const auto sharding = nlohmann::json::parse(file.metadata().at("DCP_SHARDING_INFO"));
  CHECK(sharding == nlohmann::json::parse(R"({"optimizer.columns": {"saved_offsets": [0, 8]},
                                              "optimizer.flat": {"saved_offsets": [16]}})"));
  const auto shapes = nlohmann::json::parse(file.metadata().at("dtrain.shapes"));
  CHECK(shapes ==
        nlohmann::json::parse(R"({"optimizer.columns": [6, 16], "optimizer.flat": [64]})"));
  CHECK(file.at("optimizer.columns").shape == std::vector<std::int64_t>{6, 8});
}

TEST_CASE("A missing tensor and a file that contradicts the manifest are named") {
  const TempFolder folder;
  dtrain::testing::save_example(disk, folder.path(""), 1, 2);
  const std::string path = folder.path("step-1");
  Reader good(path);
  CHECK(good.find("absent") == nullptr);
  REQUIRE(good.find("model.rows") != nullptr);
  CHECK(good.find("model.rows")->shape == std::vector<std::int64_t>{16, 6});
  const auto refusal_of_rows = [&] {
    Reader reader(path);
    std::vector<std::byte> to(16 * 6 * 4);
    const format::Box box = format::whole(std::vector<std::int64_t>{16, 6});
    return message_of(ErrorKind::checkpoint, [&] { reader.read("model.rows", box, to); });
  };
  const std::string file = path + "/model-00001-of-00002.safetensors";
  std::filesystem::copy_file(path + "/optimizer-00001-of-00002.safetensors", file,
                             std::filesystem::copy_options::overwrite_existing);
  CHECK_THAT(refusal_of_rows(), Contains(file) && Contains("model.rows"));
  // Equal bytes with another shape; equal elements with another dtype.
  const std::vector<std::byte> bytes(8 * 6 * 4);
  for (const auto& [dtype, shape] :
       {std::pair(format::Dtype::f32, std::vector<std::int64_t>{6, 8}),
        std::pair(format::Dtype::i32, std::vector<std::int64_t>{8, 6})}) {
    dtrain::testing::write_safetensors(
        file, std::vector<format::TensorView>{
                  {.name = "model.rows", .dtype = dtype, .shape = shape, .bytes = bytes}});
    CHECK_THAT(refusal_of_rows(), Names(file, "model.rows", "manifest"));
  }
}

TEST_CASE("Reading outside the tensor or into a buffer of the wrong size is a defect") {
  const TempFolder folder;
  dtrain::testing::save_example(disk, folder.path(""), 1, 1);
  Reader reader(folder.path("step-1"));
  std::vector<std::byte> to(24);
  message_of(ErrorKind::internal, [&] {
    reader.read("model.rows", {.offsets = {16, 0}, .sizes = {1, 6}}, to);
  });
  message_of(ErrorKind::internal, [&] {
    reader.read("model.rows", {.offsets = {0, 0}, .sizes = {2, 6}}, to);
  });
}

TEST_CASE("A rate limiter delays writes and is cancelled by a stop request") {
  const base::Clock::time_point start = base::Clock::now();
  RateLimiter slow(1e6);
  slow.acquire(50'000);
  slow.acquire(50'000);
  CHECK(base::seconds_since(start) >= 0.1);
  std::stop_source stop;
  RateLimiter stuck(1, stop.get_token());
  std::jthread later([&] { stop.request_stop(); });
  CHECK_THROWS_AS(stuck.acquire(1'000'000'000), SaveCancelled);
  CHECK_THROWS_AS(RateLimiter(0, stop.get_token()).acquire(0), SaveCancelled);
}

}  // namespace
}  // namespace dtrain::checkpoint::store::round_trip_test
