#include "dtrain/config/values/values.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

namespace dtrain::config::values_test {
namespace {

template <typename Value>
void check_refused(const std::vector<const char*>& texts) {
  for (const char* text : texts) {
    INFO(text);
    CHECK_FALSE(Value::parse(text).has_value());
  }
}

template <typename Value>
void check_texts(const std::vector<const char*>& texts) {
  for (const char* text : texts) CHECK(Value::parse(text)->text() == text);
}

TEST_CASE("Durations are parsed with their units") {
  CHECK(Duration::parse("90")->seconds == 90.0);
  CHECK(Duration::parse("0")->seconds == 0.0);
  CHECK(Duration::parse("0.5s")->seconds == 0.5);
  CHECK(Duration::parse("10m")->seconds == 600.0);
  CHECK(Duration::parse("1h30m")->seconds == 5400.0);
  CHECK(Duration::parse("2d1h1m1s")->seconds == 2 * 86400 + 3661.0);
  CHECK(Duration::parse("10min")->seconds == 600.0);
  CHECK(Duration::parse("2h 30min")->seconds == 9000.0);
  CHECK(Duration::parse("3 min 20 s")->seconds == 200.0);
  CHECK(Duration::parse("1H")->seconds == 3600.0);
  CHECK(Duration::parse("500ms")->seconds == 0.5);
}

TEST_CASE("Durations are parsed in SLURM's formats") {
  CHECK(Duration::parse("1:50")->seconds == 110.0);
  CHECK(Duration::parse("90:00")->seconds == 5400.0);
  CHECK(Duration::parse("1:50:00")->seconds == 6600.0);
  CHECK(Duration::parse("100:00:00")->seconds == 360'000.0);
  CHECK(Duration::parse("1-02")->seconds == 93'600.0);
  CHECK(Duration::parse("1-02:30")->seconds == 95'400.0);
  CHECK(Duration::parse("1-02:00:00")->seconds == 93'600.0);
  CHECK(Interval::parse("1:50:00")->seconds == 6600.0);
  CHECK(Interval::parse("1-12")->seconds == 129'600.0);
}

TEST_CASE("Invalid durations are rejected") {
  check_refused<Duration>({"",      "m",     "-5",      "-5s",           "-0s",
                           "1x",    "1h30",  "nan",     "inf",           "1e3s",
                           "ms",    "1:60",  "1:60:00", "1-24",          "1-",
                           "-1:00", ":30",   "1:",      "1:000",         "1:2:3:4",
                           "1:30m", "1-2-3", "1.5:00",  "1-02:00:00:00", "99999999999d",
                           "s10"});
}

TEST_CASE("An interval without a unit counts steps") {
  CHECK(Interval::parse("100")->steps == 100);
  CHECK(Interval::parse("100")->seconds == 0);
  CHECK(Interval::parse("10m")->seconds == 600);
  CHECK(Interval::parse("10m")->steps == 0);
  CHECK(Interval::parse("0")->is_never());
  CHECK(Interval::parse("0s")->is_never());
  CHECK(Interval::parse("0")->at_the_end);
  CHECK(Interval::parse("none")->is_never());
  CHECK_FALSE(Interval::parse("none")->at_the_end);
  check_refused<Interval>({"", "-1", "1.5", "nan", "ten", "10k", "99999999999999999999"});
}

TEST_CASE("Sequences are a number or \"all\"") {
  CHECK(Sequences::parse("1")->count == 1);
  CHECK(Sequences::parse("2147483648")->count == std::int64_t{1} << 31);
  CHECK(Sequences::parse("all")->count == std::numeric_limits<std::int64_t>::max());
  check_refused<Sequences>({"", "0", "-1", "2147483649", "1.5", "ALL", "all ", "8 "});
}

TEST_CASE("Sizes are bytes or have decimal or binary units") {
  CHECK(ByteSize::parse("0")->count == 0);
  CHECK(ByteSize::parse("4096")->count == 4096);
  CHECK(ByteSize::parse("4e9")->count == 4'000'000'000);
  CHECK(ByteSize::parse("500MB")->count == 500'000'000);
  CHECK(ByteSize::parse("2GiB")->count == std::int64_t{2} << 30);
  CHECK(ByteSize::parse("1.5kib")->count == 1536);
  CHECK(ByteSize::parse("4G")->count == std::int64_t{4} << 30);
  CHECK(ByteSize::parse("4Gi")->count == std::int64_t{4} << 30);
  CHECK(ByteSize::parse("512m")->count == 512 << 20);
  CHECK(ByteSize::parse("1.5g")->count == 1536 << 20);
  CHECK(ByteSize::parse("1.2 GiB")->count == 1'288'490'188);
  CHECK(ByteSize::parse("64B")->count == 64);
  CHECK(ByteSize::parse("3tb")->count == 3'000'000'000'000);
  CHECK_FALSE(ByteSize::parse("4GB/s"));
  CHECK(ByteRate::parse("4GB/s")->count == 4'000'000'000);
  CHECK(ByteRate::parse("4GB")->count == 4'000'000'000);
  check_refused<ByteSize>({"", "GB", "-1", "-1G", "2XB", "2GiBs", "2G5", "2i", "G2", "nan", "inf",
                           "1.5e0", "1e3GB", "9999999TB", "0.5", "0.0001kB"});
}

TEST_CASE("Recompute is none, level, every:K or auto") {
  using Kind = RecomputeSetting::Kind;
  CHECK(RecomputeSetting::parse("none")->kind == Kind::none);
  CHECK(RecomputeSetting::parse("level")->kind == Kind::level);
  CHECK(RecomputeSetting::parse("auto")->kind == Kind::automatic);
  CHECK(RecomputeSetting::parse("every:3")->kind == Kind::every);
  CHECK(RecomputeSetting::parse("every:3")->group_size == 3);
  check_refused<RecomputeSetting>(
      {"", "all", "every", "every:", "every:0", "every:-1", "every:2x"});
}

TEST_CASE("A pipeline schedule is gpipe, 1f1b or interleaved:V") {
  CHECK(PipelineSetting::parse("gpipe")->kind == PipelineKind::gpipe);
  CHECK(PipelineSetting::parse("1f1b")->kind == PipelineKind::one_f_one_b);
  CHECK(PipelineSetting::parse("interleaved:3") ==
        PipelineSetting{.kind = PipelineKind::interleaved, .chunks = 3});
  check_texts<PipelineSetting>({"gpipe", "1f1b", "interleaved:12"});
  check_refused<PipelineSetting>({"", "1F1B", "interleaved", "interleaved:", "interleaved:1",
                                  "interleaved:-2", "interleaved:2x", "interleaved:2 "});
}

TEST_CASE("A pipeline split is a list of numbers") {
  CHECK(LayerSplit::parse("")->layers.empty());
  CHECK(LayerSplit::parse("7")->layers == std::vector<std::int64_t>{7});
  CHECK(LayerSplit::parse("3,5,4")->layers == std::vector<std::int64_t>{3, 5, 4});
  check_refused<LayerSplit>({",", "3,", ",3", "3,,4", "3, 5", "a", "3,-1", "3.5"});
}

TEST_CASE("Devices are a list of CPUs and numbers of GPUs") {
  CHECK(DeviceList::parse("")->devices.empty());
  CHECK(DeviceList::parse("cpu,0,12")->devices ==
        std::vector<std::optional<std::int64_t>>{std::nullopt, 0, 12});
  check_refused<DeviceList>({",", "cpu,", ",cpu", "cpu,,cpu", "gpu", "cpu, cpu", "cpu,-1", "1.5"});
}

TEST_CASE("A device is a kind with an optional index") {
  CHECK(DeviceName::parse("cuda")->kind == "cuda");
  CHECK(DeviceName::parse("cuda:12")->index == 12);
  CHECK(DeviceName::parse("cuda:12")->text() == "cuda:12");
  check_refused<DeviceName>(
      {"", ":1", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "auto:0", "../x", "GPU"});
}

TEST_CASE("A value keeps the text that it was parsed from") {
  CHECK(ByteSize::parse("1.5kib")->text() == "1.5kib");
  CHECK(Duration::parse("1h30m")->text() == "1h30m");
  check_texts<Interval>({"100", "10m", "none"});
  CHECK(Interval::parse("0s")->text() == "0");
  check_texts<Sequences>({"8", "all"});
  check_texts<Resume>({"none", "auto", "runs/a", ""});
  check_texts<RecomputeSetting>({"none", "level", "every:3", "auto"});
  check_texts<Offload>({"none", "optimizer", "all", "disk:/a b"});
  check_refused<Offload>({"", "disk", "disk:", "cpu"});
  CHECK(LayerSplit::parse("3,5,4")->text() == "3,5,4");
  check_texts<DeviceList>({"", "cpu,cpu", "1,cpu,0"});
}

}  // namespace
}  // namespace dtrain::config::values_test
