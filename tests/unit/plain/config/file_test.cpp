#include "dtrain/config/input/file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/advice.h"
#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::config::file_test {
namespace {

using namespace dtrain::config;
using Catch::Matchers::Contains;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using Words = std::vector<std::string>;

// Parses the flags of a command as the front end does.
CommandLine parse_command_line(Command command, const std::vector<std::string>& arguments) {
  CLI::App app("", fmt::format("dtrain {}", name_of(command)));
  base::set_up_parser(app);
  add_settings(app, command);
  base::parse_arguments(app, arguments);
  reject_unknown_arguments(app, command, arguments);
  return with_deepspeed(parsed_settings(app, command));
}

LoadedSettings loaded_from(const std::string& path, Command command = Command::train) {
  LoadedSettings loaded;
  apply_file(path, command, loaded);
  return loaded;
}

Config load_file(const std::string& path) { return loaded_from(path).config; }

std::int64_t heads_of(const Config& config) { return config.model.heads; }

void check_refused(const std::string& text, const Names& names) {
  const TempFolder folder;
  const std::string path = folder.write("some.json", text);
  INFO(text);
  try {
    (void)load_file(path);
    FAIL_CHECK("accepted");
  } catch (const dtrain::base::Error& error) {
    CHECK(error.exit_status() == 2);
    CHECK_THAT(error.what(), Names("some.json") && names);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
}

TEST_CASE("A file may contain nested objects, dotted keys and comments") {
  const TempFolder folder;
  const Config config = load_file(folder.write("a.json", R"(// a comment
    {"model": {"width": 64, /* another */ "tie_layers": false}, "train.lr": 3e-3,
     "train": {"freeze": ["embed.weight", "lm_head"], "seed": 18446744073709551615},
     "data": {"train": "text.bin"}})"));
  CHECK(config.model.width == 64);
  CHECK_FALSE(bdh::settings_of(config.model).tie_layers);
  CHECK(config.train.lr == 3e-3);
  CHECK(config.train.freeze == std::vector<std::string>{"embed.weight", "lm_head"});
  CHECK(config.train.seed == 18446744073709551615ULL);
  CHECK(config.data.train == "text.bin");
  CHECK(heads_of(config) == heads_of({}));
}

TEST_CASE("Former names of settings are read, but not beside the current ones") {
  const TempFolder folder;
  const Config config =
      load_file(folder.write("a.json", R"({"model": {"levels": 3, "tie_levels": false}})"));
  CHECK(config.model.layers == 3);
  CHECK_FALSE(bdh::settings_of(config.model).tie_layers);
  check_refused(R"({"model": {"levels": 3, "layers": 3}})", Names("layers"));
}

TEST_CASE("A rate is a number, or left to dtrain by a word") {
  const TempFolder folder;
  const auto load = [&](const char* text) { return load_file(folder.write("a.json", text)); };
  const Config given = load(R"({"train": {"lr": 0.5, "warmup_steps": 1e1, "min_lr": 0}})");
  CHECK(given.train.lr == 0.5);
  CHECK(given.train.warmup_steps == 10);
  CHECK(given.train.min_lr == 0.0);
  const Config open = load(R"({"train": {"lr": "auto", "warmup_steps": "auto"}})");
  CHECK_FALSE(open.train.lr.has_value());
  CHECK_FALSE(open.train.warmup_steps.has_value());
  check_refused(R"({"train": {"lr": "fast"}})", Names("train.lr", "fast", "auto"));
  check_refused(R"({"train": {"lr": -1}})", Names("train.lr", "-1"));
  check_refused(R"({"train": {"warmup_steps": 1.5}})", Names("train.warmup_steps", "1.5", "auto"));
}

TEST_CASE("A file wins over the files it extends, and the later of those over the earlier") {
  const TempFolder folder;
  folder.write("base/deep.json", R"({"model.layers": 1, "model.width": 1, "model.heads": 1})");
  folder.write("base/a.json", R"({"extends": "deep.json", "model.width": 2, "model.heads": 2})");
  folder.write("base/b.json", R"({"model": {"heads": 3}, "train.steps": 3})");
  const Config config = load_file(folder.write(
      "x/top.json", R"({"train.steps": 4, "extends": ["../base/a.json", "../base/b.json"]})"));
  CHECK(config.model.layers == 1);
  CHECK(config.model.width == 2);
  CHECK(heads_of(config) == 3);
  CHECK(config.train.steps == 4);
}

TEST_CASE("Circular extends is rejected, extending a file twice is not") {
  const TempFolder folder;
  folder.write("a.json", R"({"extends": "b.json"})");
  folder.write("b.json", R"({"extends": "./a.json"})");
  CHECK_THROWS_WITH(load_file(folder.write("c.json", R"({"extends": "a.json"})")),
                    Catch::Contains("circular") && Catch::Contains("b.json"));
  folder.write("base.json", R"({"model.width": 8})");
  folder.write("d.json", R"({"extends": "base.json"})");
  CHECK(load_file(folder.write("e.json", R"({"extends": ["d.json", "base.json"]})")).model.width ==
        8);
}

TEST_CASE("The error about a missing extended file names both files") {
  check_refused(R"({"extends": "nothing.json"})", Names("nothing.json", "some.json: extends"));
  check_refused(R"({"extends": 3})", Names("extends", 3));
}

TEST_CASE("Unknown and repeated keys are rejected") {
  check_refused(R"({"model": {"widht": 64}})", Names("model.widht", "model.width?"));
  check_refused(R"({"width": 64})", Names("width", "model.width?"));
  check_refused(R"({"model": {"width": 1, "width": 2}})", Names("model.width", "twice"));
  check_refused(R"({"mo\u0000del": 1})", Names("mo?del"));
  check_refused(R"({"model": {"width": 1}, "model.width": 2})", Names("model.width", "twice"));
  check_refused(R"({"model": {}, "model": {}})", Names("model", "twice"));
}

TEST_CASE(
    "Values of the wrong type or out of range are rejected with the found and the allowed values") {
  check_refused(R"({"model": {"width": "64"}})", Names("model.width", "\"64\"", "whole number"));
  check_refused(R"({"model": {"width": 64.5}})", Names("model.width", 64.5));
  check_refused(R"({"model": {"width": null}})", Names("model.width", "null"));
  check_refused(R"({"model": {"width": [1]}})", Names("model.width", "[1]"));
  check_refused(R"({"model": {"width": 0}})", Names("model.width", 0, "1 to 16384"));
  check_refused(R"({"model": {"width": 18446744073709551615}})", Names("18446744073709551615"));
  check_refused(R"({"model": {"dropout": 1}})", Names("model.dropout", "found 1", "below 1"));
  check_refused(R"({"model": {"tie_layers": 1}})", Names("model.tie_layers", 1, "on", "off"));
  check_refused(R"({"model": {"name": "gpt2", "learned_positions": 0}})",
                Names("model.learned_positions", 0));
  check_refused(R"({"train": {"seed": -1}})", Names("train.seed", -1, "2^64-1"));
  check_refused(R"({"train": {"freeze": "lm_head"}})", Names("train.freeze", "lm_head", "list"));
  check_refused(R"({"train": {"schedule": "linaer"}})",
                Names("linaer", "constant, linear, cosine", "linear?"));
  check_refused(R"({"machine": {"backend": "nccl"}})",
                Names("machine.backend", "nccl", "--device cuda"));
}

TEST_CASE("Invalid JSON is rejected with its position") {
  check_refused("{\"model\": {\n\"width\": }}", Names("valid JSON", "line 2"));
  check_refused("", Names("empty"));
  check_refused("\xef\xbb\xbf", Names("empty"));
  check_refused("[]", Names("array"));
  check_refused("{} {}", Names("valid JSON"));
  std::string deep(100'000, '[');
  check_refused(R"({"model": )" + deep, Names("nested"));
}

TEST_CASE("Other formats are recognised by their first line, whatever the file name") {
  check_refused("model:\n  width: 96\n", Names("valid JSON", "model:", "{\"key\": value"));
  check_refused("\n[model]\nwidth = 96\n", Names("[model]", "{\"key\": value"));
  check_refused("# a comment\nout_dir = 'x'\n", Names("# a comment", "{\"key\": value"));
  check_refused("\xef\xbb\xbfversion https://git-lfs.github.com/spec/v1\n", Names("version https"));
}

TEST_CASE("Syntax that JSON lacks is rejected with a suggestion") {
  check_refused(R"({"train": {"lr": NaN}})", Names("lr", "finite"));
  check_refused(R"({"train": {"lr": Infinity}})", Names("lr", "finite"));
  check_refused(R"({"model": {"tie_layers": True}})", Names("tie_layers", "true"));
  check_refused(R"({"data": {"validation": None}})", Names("validation", "leave"));
  check_refused(R"({'model': {}})", Names("double quotes"));
  check_refused(R"({model: {}})", Names("double quotes"));
  check_refused("{ # a comment\n}", Names("//"));
  check_refused(R"({"model": {"width": 96,}})", Names("comma"));
  check_refused(R"({"model": {"width": 96)", Names("line 1", "complete"));
}

TEST_CASE("Zero bytes, as in UTF-16 text, are rejected and do not end a file early") {
  const std::string text = R"({"model": {"width": 96}})";
  std::string utf16;
  for (const char letter : text) utf16 += {letter, '\0'};
  check_refused("\xff\xfe" + utf16, Names("UTF-16", "UTF-8"));
  check_refused(utf16, Names("UTF-16", "UTF-8"));
  check_refused(text + '\0' + "more", Names("UTF-16", "UTF-8"));
}

TEST_CASE("A number out of the range of float64 is rejected with its key, not rounded to 0") {
  check_refused(R"({"train": {"beta1": 0.5, "lr": 1e-400}})", Names("train.lr", "1e-400"));
  check_refused(R"({"train": {"lr": 1e400}})", Names("train.lr", "1e400"));
  const TempFolder folder;
  CHECK(load_file(folder.write("a.json", R"({"train": {"lr": 0e-999}})")).train.lr == 0);
  CHECK(load_file(folder.write("b.json", R"({"train": {"lr": 1e-310}})")).train.lr == 1e-310);
}

TEST_CASE("Only groups of settings may be empty objects") {
  check_refused(R"({"mdoel": {}})", Names("mdoel"));
  check_refused(R"({"model": {"width": {}}})", Names("model.width", "{}"));
  const TempFolder folder;
  CHECK(loaded_from(folder.write("a.json", R"({"model": {}})")).given.empty());
}

TEST_CASE("Settings of other commands are allowed in a file and reported") {
  const TempFolder folder;
  const LoadedSettings loaded = loaded_from(
      folder.write("a.json", R"({"model.width": 64, "machine.threads": 2})"), Command::generate);
  CHECK(loaded.unused == std::vector<std::string>{"model.width"});
  CHECK(loaded.config.machine.threads == 2);
}

TEST_CASE("Settings of older builds are ignored in a file and reported") {
  const TempFolder folder;
  const LoadedSettings loaded = loaded_from(
      folder.write("a.json", R"({"layout": {"tied_reshard": "per-use"}, "model.width": 32})"));
  CHECK(loaded.unused == std::vector<std::string>{"layout.tied_reshard"});
  CHECK(loaded.config.model.width == 32);
  for (const auto& [value, reported] : {std::pair{"per-use", 1U}, std::pair{"per-pass", 0U}}) {
    const std::string text =
        fmt::format(R"({{"layout": {{"tied_reshard": "{}"}}, "resolved": {{}}}})", value);
    CHECK(loaded_from(folder.write("saved.json", text)).unused.size() == reported);
  }
}

Config load_arguments(const std::vector<std::string>& arguments) {
  return load(parse_command_line(Command::train, arguments)).config;
}

TEST_CASE("Flags override files, and the last of repeated flags wins") {
  const TempFolder folder;
  const std::string path =
      folder.write("a.json", R"({"model": {"width": 64, "heads": 2, "layers": 3}})");
  const Config config = load_arguments({"--width", "96", "--set", "model.width=128", "--layers=5",
                                        "--config", path, "--layers", "7"});
  CHECK(config.model.width == 128);
  CHECK(heads_of(config) == 2);
  CHECK(config.model.layers == 7);
  CHECK(load_arguments({"--set", "model.width=128", "--width", "96"}).model.width == 96);
}

TEST_CASE("Flags of every type are parsed") {
  const Config config =
      load_arguments({"--tie-layers", "off", "--overwrite", "--freeze", "embed.weight,lm_head",
                      "--lr", "1e-4", "--seed", "7", "--data=--odd-name", "--val-data", "", "--set",
                      "data.val_fraction=0.5", "--set", "run.dir="});
  CHECK_FALSE(bdh::settings_of(config.model).tie_layers);
  CHECK(config.run.overwrite);
  CHECK(config.train.freeze == std::vector<std::string>{"embed.weight", "lm_head"});
  CHECK(config.train.lr == 1e-4);
  CHECK(config.train.seed == 7);
  CHECK(config.data.train == "--odd-name");
}

TEST_CASE("Invalid flags are rejected by name") {
  const auto refused = [](const std::vector<std::string>& arguments, const Names& names) {
    CHECK_THROWS_WITH(load_arguments(arguments), names);
  };
  refused({"--widht", "3"}, Names("--widht", "--width?"));
  refused({"--max-tokens", "3"}, Names("--max-tokens", "generate.max_tokens"));
  refused({"--steps"}, Names("--steps", "N"));
  refused({"word"}, Names("\"word\""));
  refused({"--set", "model.width"}, Names("--set", "KEY=VALUE"));
  refused({"--set", "model.widht=3"}, Names("model.widht", "model.width?"));
  refused({"--set", "model.width=x"}, Names("--set model.width", "\"x\""));
  refused({"--lr", "nan"}, Names("--lr", "nan"));
  refused({"--lr", "inf"}, Names("--lr", "inf"));
  refused({"--lr", "-1"}, Names("--lr", -1));
  refused({"--width", "64x"}, Names("--width", "\"64x\""));
  refused({"--width", "99999999999999999999"}, Names("--width", "whole number"));
  refused({"--data", "\xff\xfe"}, Names("--data", "UTF-8"));
}

ExportConfig parse(const Words& words) {
  return load(parse_command_line(Command::export_checkpoint, words)).config.exporting;
}

TEST_CASE("Positional arguments fill their settings in order, wherever flags are given") {
  for (const Words& words : {Words{"run", "m.safetensors", "--dtype", "float16"},
                             Words{"--dtype", "float16", "run", "m.safetensors"},
                             Words{"run", "--dtype=float16", "m.safetensors"}}) {
    const ExportConfig found = parse(words);
    CHECK(found.checkpoint == "run");
    CHECK(found.file == "m.safetensors");
    CHECK(found.dtype == Dtype::float16);
  }
  CHECK(parse({"run"}).checkpoint == "run");
  CHECK(parse({"run"}).file.empty());
}

TEST_CASE("An extra positional argument is rejected") {
  CHECK_THROWS_WITH(parse({"run", "m.safetensors", "more"}), Contains("\"more\""));
  CHECK_THROWS_WITH(parse_command_line(Command::train, {"run"}), Contains("\"run\""));
}

TEST_CASE("A flag sets the setting of its own command") {
  const auto train = parse_command_line(Command::train, {"--dtype", "float64"});
  CHECK(load(train).config.machine.dtype == Dtype::float64);
  CHECK(load(train).config.exporting.dtype == Dtype::automatic);
  CHECK(parse({"--dtype", "bfloat16"}).dtype == Dtype::bfloat16);
  CHECK_THROWS_WITH(load(parse_command_line(Command::train, {"--backend", "nccl"})),
                    Names("nccl", "--device cuda"));
}

}  // namespace
}  // namespace dtrain::config::file_test
