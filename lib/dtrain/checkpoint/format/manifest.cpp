#include "dtrain/checkpoint/format/manifest.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/internal/strict_json.h"

namespace dtrain::checkpoint::format {
namespace {

using base::checksum_of;
using base::checksum_text;
using base::ErrorKind;
using base::fail;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kFormat = "dtrain checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr int kMaxDepth = 8;
constexpr std::string_view kBeforeChecksum = "{\"xxh3\": \"";
constexpr std::string_view kAfterChecksum = "\",";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kBodyBegin = kBeforeChecksum.size() + kDigits + kAfterChecksum.size();

OrderedJson to_json(const PieceInfo& piece) {
  return {{"tensor", piece.tensor},
          {"offsets", piece.box.offsets},
          {"sizes", piece.box.sizes},
          {"xxh3", checksum_text(piece.checksum)}};
}

OrderedJson to_json(const FileInfo& file) {
  OrderedJson pieces = OrderedJson::array();
  for (const PieceInfo& piece : file.pieces) pieces.push_back(to_json(piece));
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"xxh3", checksum_text(file.checksum)},
          {"pieces", std::move(pieces)}};
}

OrderedJson to_json(const Contents& contents) {
  OrderedJson tensors = OrderedJson::object();
  for (const auto& [name, tensor] : contents.tensors) {
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}};
  }
  OrderedJson files = OrderedJson::array();
  for (const FileInfo& file : contents.files) files.push_back(to_json(file));
  return {{"tensors", std::move(tensors)}, {"files", std::move(files)}};
}

/// Reads the fields of one JSON object and rejects unknown ones.
class Fields {
 public:
  Fields(const Json& object, std::string_view what, std::string_view where)
      : object_(object), what_(what), where_(where) {
    if (!object.is_object()) refuse("is not a JSON object");
  }

  [[nodiscard]] const Json& take(std::string_view name) {
    const auto found = object_.find(name);
    if (found == object_.end()) refuse(fmt::format("lacks \"{}\"", name));
    ++taken_;
    return *found;
  }

  /// Returns null if the field is missing.
  [[nodiscard]] const Json* take_if_there(std::string_view name) {
    return object_.contains(name) ? &take(name) : nullptr;
  }

  [[nodiscard]] std::string text(std::string_view name) {
    const Json& value = take(name);
    if (!value.is_string()) refuse(fmt::format("has a \"{}\" that is not a string", name));
    auto text = value.get<std::string>();
    // Later messages quote this text, so it must fit in one line.
    if (!is_printable(text)) refuse(fmt::format("has a \"{}\" with control characters", name));
    return text;
  }

  [[nodiscard]] std::int64_t number(std::string_view name) { return number_of(take(name), name); }

  [[nodiscard]] std::vector<std::int64_t> numbers(std::string_view name) {
    const Json& list = array(name);
    std::vector<std::int64_t> result;
    for (const Json& value : list) result.push_back(number_of(value, name));
    return result;
  }

  [[nodiscard]] const Json& array(std::string_view name) {
    const Json& value = take(name);
    if (!value.is_array()) refuse(fmt::format("has a \"{}\" that is not a list", name));
    return value;
  }

  [[nodiscard]] std::uint64_t checksum(std::string_view name) {
    const std::string digits = text(name);
    std::uint64_t value = 0;
    const auto end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() != kDigits || result.ptr != end || result.ec != std::errc()) {
      refuse(fmt::format("has a \"{}\" that is not a checksum: \"{}\"", name, digits));
    }
    return value;
  }

  /// Call after the last field.
  void finish() const {
    if (object_.size() != taken_) refuse("has unknown keys");
  }

  [[noreturn]] void refuse(std::string_view found) const {
    fail(ErrorKind::checkpoint, "{}: {} {}", where_, what_, found);
  }

 private:
  [[nodiscard]] std::int64_t number_of(const Json& value, std::string_view name) const {
    const std::optional<std::int64_t> number = size_in(value);
    if (!number) refuse(fmt::format("has a \"{}\" that is not a size: {}", name, value.dump()));
    return *number;
  }

  const Json& object_;
  std::string what_;
  std::string_view where_;
  std::size_t taken_ = 0;
};

TensorInfo tensor_from(const Json& json, const std::string& name, std::string_view where) {
  Fields fields(json, fmt::format("tensor '{}'", name), where);
  const std::string dtype_name = fields.text("dtype");
  const auto dtype = dtype_named(dtype_name);
  if (!dtype) fields.refuse(fmt::format("has an unknown dtype \"{}\"", dtype_name));
  TensorInfo tensor{.dtype = *dtype, .shape = fields.numbers("shape")};
  fields.finish();
  return tensor;
}

PieceInfo piece_from(const Json& json, const std::string& file, std::string_view where) {
  Fields fields(json, fmt::format("a piece of file '{}'", file), where);
  PieceInfo piece{.tensor = fields.text("tensor"),
                  .box = {.offsets = fields.numbers("offsets"), .sizes = fields.numbers("sizes")},
                  .checksum = fields.checksum("xxh3")};
  fields.finish();
  return piece;
}

FileInfo file_from(const Json& json, std::string_view where) {
  Fields fields(json, "a file", where);
  FileInfo file{.name = fields.text("name"),
                .bytes = fields.number("bytes"),
                .checksum = fields.checksum("xxh3"),
                .pieces = {}};
  for (const Json& piece : fields.array("pieces")) {
    file.pieces.push_back(piece_from(piece, file.name, where));
  }
  fields.finish();
  return file;
}

Contents contents_from(Fields& fields, std::string_view where) {
  Contents contents;
  const Json& tensors = fields.take("tensors");
  if (!tensors.is_object()) fields.refuse("has \"tensors\" that are not a JSON object");
  for (const auto& [name, tensor] : tensors.items()) {
    contents.tensors.emplace(name, tensor_from(tensor, name, where));
  }
  for (const Json& file : fields.array("files")) contents.files.push_back(file_from(file, where));
  return contents;
}

config::MeshShape mesh_from(const Json& json, std::string_view where) {
  Fields fields(json, "the layout", where);
  config::MeshShape mesh;
  std::int64_t left = fields.number("world_size");
  for (const config::Axis axis : config::kAxes) {
    mesh[axis] = fields.number(name_of(axis));
    if (mesh[axis] < 1 || left % mesh[axis] != 0)
      fields.refuse("has a world_size that is not the product of its axes");
    left /= mesh[axis];
  }
  if (left != 1) fields.refuse("has a world_size that is not the product of its axes");
  fields.finish();
  return mesh;
}

// Returns an empty object for older versions and for runs without such state.
std::string history_from(Fields& fields) {
  const Json* history = fields.take_if_there("history");
  if (history == nullptr) return "{}";
  if (!history->is_object()) fields.refuse("has a \"history\" that is not a JSON object");
  return history->dump();
}

// The part that the manifest's own checksum covers.
std::string_view checked_body(std::string_view text, std::string_view where) {
  const bool framed = text.size() > kBodyBegin && text.starts_with(kBeforeChecksum) &&
                      text.substr(kBodyBegin - kAfterChecksum.size()).starts_with(kAfterChecksum);
  if (!framed)
    fail(ErrorKind::checkpoint,
         "{} is damaged or not a dtrain manifest: its header is invalid; restore the file, or use "
         "another checkpoint",
         where);
  const std::string_view body = text.substr(kBodyBegin);
  const std::string found = checksum_text(checksum_of(body));
  // The message omits the manifest's checksum field, whose content is untrusted.
  if (text.substr(kBeforeChecksum.size(), kDigits) != found) {
    fail(ErrorKind::checkpoint,
         "{} is damaged: its checksum is {}, not the recorded one; restore the file, or use "
         "another checkpoint",
         where, found);
  }
  return body;
}

}  // namespace

std::string to_text(const Contents& contents) { return to_json(contents).dump(); }

Contents parse_contents(std::string_view text) {
  constexpr std::string_view kWhere = "a rank's file list";
  const Json json = parse_strictly(text, kMaxDepth, [&](std::string_view found) {
    fail(ErrorKind::internal, "{} is a message {}", kWhere, found);
  });
  Fields fields(json, "the message", kWhere);
  Contents contents = contents_from(fields, kWhere);
  fields.finish();
  return contents;
}

std::string to_text(const Manifest& manifest) {
  const Json config = Json::parse(manifest.config);
  OrderedJson layout{{"world_size", manifest.mesh.num_ranks()}};
  for (const config::Axis axis : config::kAxes) layout[name_of(axis)] = manifest.mesh[axis];
  OrderedJson json{{"format", kFormat},
                   {"version", kVersion},
                   {"step", manifest.step},
                   {"samples", manifest.samples},
                   {"tokens", manifest.tokens},
                   {"run", manifest.run},
                   {"scaler", nullptr},
                   {"layout", layout},
                   {"data_fingerprint", manifest.data_fingerprint},
                   {"config_xxh3", checksum_text(checksum_of(config.dump()))},
                   {"config", config}};
  if (manifest.history != "{}") json["history"] = Json::parse(manifest.history);
  json.update(to_json(manifest.contents));
  const std::string body = json.dump(1).substr(1) + "\n";
  return fmt::format("{}{}{}{}", kBeforeChecksum, checksum_text(checksum_of(body)), kAfterChecksum,
                     body);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const std::string where = fmt::format("manifest '{}'", path);
  std::string body("{");
  body += checked_body(text, where);
  const Json json = parse_strictly(body, kMaxDepth, [&](std::string_view found) {
    fail(ErrorKind::checkpoint, "{} is a file {}", where, found);
  });
  Fields fields(json, "it", where);
  if (fields.text("format") != kFormat) fields.refuse("was written by another program");
  if (const std::int64_t version = fields.number("version"); version != kVersion) {
    fields.refuse(
        fmt::format("has version {}, but this dtrain reads {}; use the dtrain that wrote it",
                    version, kVersion));
  }
  Manifest manifest{.step = fields.number("step"),
                    .samples = fields.number("samples"),
                    .tokens = fields.number("tokens"),
                    .history = history_from(fields),
                    .run = fields.text("run"),
                    .mesh = mesh_from(fields.take("layout"), where),
                    .config = fields.take("config").dump(),
                    .data_fingerprint = fields.text("data_fingerprint"),
                    .contents = contents_from(fields, where)};
  if (!json["config"].is_object()) fields.refuse("has a configuration that is not a JSON object");
  if (fields.checksum("config_xxh3") != checksum_of(manifest.config)) {
    fields.refuse("has a configuration that does not match its checksum");
  }
  if (!fields.take("scaler").is_null())
    fields.refuse("has a \"scaler\", which this dtrain does not support");
  fields.finish();
  check_contents(manifest.contents, where);
  return manifest;
}

}  // namespace dtrain::checkpoint::format
