#include "dtrain/metrics/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"

namespace dtrain::metrics {
namespace {

// Field numbers of TensorFlow's event.proto, summary.proto, tensor.proto and tensor_shape.proto.
namespace event {
constexpr std::uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr std::uint64_t kValue = 1, kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr std::uint64_t kPluginData = 1, kPluginName = 1;
}  // namespace summary
namespace tensor {
constexpr std::uint64_t kDtype = 1, kShape = 2, kStringValue = 8, kDim = 2, kSize = 1;
constexpr std::uint64_t kTypeString = 7;
}  // namespace tensor
constexpr std::uint64_t kStatus = 1, kStatusStart = 1;  // of a session log

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? kReversedPolynomial : 0);
    }
    table[byte] = rest;
  }
  return table;
}();

// TFRecord rotates each CRC and adds a constant, since a CRC of bytes that contain CRCs is weak.
std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kMask = 0xA282EAD8;
  return std::rotr(crc32c(bytes), 15) + kMask;
}

template <typename Number>
std::string little_endian(Number number) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

/// A message in protobuf's encoding, field by field.
class Message {
 public:
  Message& number(std::uint64_t field, std::uint64_t value) {
    constexpr std::uint64_t kVarint = 0;
    add_key(field, kVarint);
    add_varint(value);
    return *this;
  }
  template <std::floating_point Real>
  Message& real(std::uint64_t field, Real value) {
    constexpr std::uint64_t kFixed64 = 1, kFixed32 = 5;
    add_key(field, sizeof(Real) == 8 ? kFixed64 : kFixed32);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& bytes(std::uint64_t field, std::string_view value) {
    constexpr std::uint64_t kLengthDelimited = 2;
    add_key(field, kLengthDelimited);
    add_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(std::uint64_t field, const Message& value) { return bytes(field, value.bytes_); }

  [[nodiscard]] const std::string& text() const { return bytes_; }

 private:
  void add_key(std::uint64_t field, std::uint64_t type) { add_varint(field << 3 | type); }
  // Seven bits a byte, the lowest first; the top bit says that more follow.
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event_at(const EventTime& at) {
  return Message()
      .real(event::kWallTime, at.wall_seconds)
      .number(event::kStep, static_cast<std::uint64_t>(at.step));
}

// A record of a TFRecord file: length, its CRC, the bytes, their CRC.
std::string framed(const Message& event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.text().size()));
  return length + little_endian(masked_crc(length)) + event.text() +
         little_endian(masked_crc(event.text()));
}

namespace fs = std::filesystem;

// TensorBoard reads the files that have this in their names, in the order of their names.
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kOurs = ".dtrain";  // suffix of our files

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Empty if the folder cannot be listed for good, as without permission.
std::vector<std::string> our_files(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names = base::names_in(folder, error);
  if (base::is_transient(error.value())) {
    throw base::StorageError(fmt::format("{}: cannot be listed: {}", folder, error.message()),
                             error.value());
  }
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with(kPrefix) || !name.ends_with(kOurs);
  });
  return names;
}

// The time in the name of an event file, in seconds; 0 if it has none.
std::int64_t time_in(std::string_view name) {
  name.remove_prefix(kPrefix.size());
  std::int64_t seconds = 0;
  std::from_chars(name.data(), name.data() + name.size(), seconds);
  return seconds;
}

// A name that sorts after those of earlier launches, even if the clock was set back.
std::string new_name(const std::string& folder) {
  auto seconds = static_cast<std::int64_t>(wall_seconds());
  for (const std::string& name : our_files(folder)) seconds = std::max(seconds, time_in(name) + 1);
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}{:010}.{}.{}{}", kPrefix, seconds, host.data(), ::getpid(), kOurs);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  (void)base::retry_transient(folder, [&] {
    fs::create_directories(folder, error);
    errno = error.value();
    return error ? -1 : 0;
  });
  if (!error) return;
  base::fail_on_storage(base::ErrorKind::data, error.value(),
                        fmt::format("{}: cannot be created: {}; move it away, or --tensorboard off",
                                    folder, error.message()));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = 0xFFFFFFFF;
  for (const char byte : bytes) {
    rest = (rest >> 8) ^ kCrcTable[(rest ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~rest;
}

std::string version_record(double wall_seconds) {
  return framed(
      Message().real(event::kWallTime, wall_seconds).bytes(event::kFileVersion, "brain.Event:2"));
}

std::string start_record(const EventTime& at) {
  return framed(event_at(at).message(event::kSessionLog, Message().number(kStatus, kStatusStart)));
}

std::string scalars_record(const EventTime& at, std::span<const Scalar> scalars) {
  Message values;
  for (const Scalar& scalar : scalars) {
    values.message(summary::kValue,
                   Message()
                       .bytes(summary::kTag, scalar.tag)
                       .real(summary::kSimpleValue, static_cast<float>(scalar.value)));
  }
  return framed(event_at(at).message(event::kSummary, values));
}

std::string text_record(const EventTime& at, std::string_view tag, std::string_view text) {
  const Message plugin = Message().bytes(summary::kPluginName, "text");
  const Message shape = Message().message(tensor::kDim, Message().number(tensor::kSize, 1));
  const Message value =
      Message()
          .bytes(summary::kTag, tag)
          .message(summary::kTensor, Message()
                                         .number(tensor::kDtype, tensor::kTypeString)
                                         .message(tensor::kShape, shape)
                                         .bytes(tensor::kStringValue, text))
          .message(summary::kMetadata, Message().message(summary::kPluginData, plugin));
  return framed(event_at(at).message(event::kSummary, Message().message(summary::kValue, value)));
}

EventFile::EventFile(std::string folder, std::int64_t first_step)
    : folder_(std::move(folder)), first_step_(first_step) {}

void EventFile::write(const std::string& record) {
  std::string bytes;
  if (!file_) {
    make_folder(folder_);
    file_ = std::make_unique<AppendedFile>(folder_ + "/" + new_name(folder_),
                                           AppendedFile::Start::empty, "records");
    const double now = wall_seconds();
    bytes = version_record(now) + start_record({.wall_seconds = now, .step = first_step_});
  }
  file_->write(bytes + record);
}

void EventFile::scalars(std::int64_t step, std::span<const Scalar> scalars) {
  write(scalars_record({.wall_seconds = wall_seconds(), .step = step}, scalars));
}

// Markdown shows lines that begin with four spaces verbatim.
void EventFile::text(std::int64_t step, std::string_view tag, std::string_view text) {
  constexpr std::string_view kIndent = "    ";
  std::string shown(kIndent);
  for (const char c : text) {
    shown += c;
    if (c == '\n') shown += kIndent;
  }
  write(text_record({.wall_seconds = wall_seconds(), .step = step}, tag, shown));
}

void EventFile::finish() {
  if (file_) file_->finish();
}

void remove_event_files(const std::string& folder) {
  if (!fs::is_directory(base::link_status(folder))) return;  // a link leads elsewhere
  base::Disk disk(base::ErrorKind::data);
  for (const std::string& name : our_files(folder)) disk.remove_file(folder + "/" + name);
  std::error_code error;
  fs::remove(folder, error);  // fails where files of others are
}

}  // namespace dtrain::metrics
