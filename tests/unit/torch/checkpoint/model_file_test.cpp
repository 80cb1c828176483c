#include "dtrain/checkpoint/model_file.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "dtrain/checkpoint/format/safetensors.h"
#include "support/ids.h"
#include "support/messages.h"
#include "support/temp_folder.h"
#include "support/tensor_file.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::checkpoint::model_file_test {
namespace {

using format::SafetensorsFile;
using testing::BdhFixture;
using testing::TempFolder;
using testing::write_tensor_file;
using testing::operator""_p;

constexpr model::bdh::BdhSizes kSizes{
    .layers = 2, .width = 6, .heads = 3, .neurons = 4, .vocab = 9, .tie_layers = true};

std::vector<NamedTensor> buffers_of(const BdhFixture& fixture) {
  std::vector<NamedTensor> buffers;
  for (const auto& buffer : fixture.model->buffers) buffers.push_back({buffer.name, buffer.value});
  return buffers;
}

Constants constants_of(const BdhFixture& fixture) {
  return {.buffers = buffers_of(fixture), .unused = fixture.model->unused_tensors};
}

void write(const std::string& path, const BdhFixture& fixture) {
  write_model_file(path, fixture.model->parameters, fixture.weights, buffers_of(fixture),
                   {{"dtrain.model", "{}"}});
}

param::Arena read(const std::string& path, const BdhFixture& fixture, at::ScalarType dtype) {
  return read_model_file(format::WeightFile::open(path), fixture.model->parameters,
                         constants_of(fixture), dtype)
      .weights;
}

/// The tensors of a written model, for modification.
std::vector<NamedTensor> tensors_of(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<NamedTensor> tensors;
  for (const auto& view : file.tensors()) tensors.push_back({view.name, to_tensor(view)});
  return tensors;
}

struct Written {
  explicit Written(const model::bdh::BdhSizes& sizes = kSizes, at::ScalarType dtype = at::kFloat)
      : fixture(sizes, dtype) {
    fixture.randomise(1);
    write(path, fixture);
  }

  /// The error for the file after `change` was applied to its tensors.
  template <typename Change>
  std::string refusal(Change change) {
    std::vector<NamedTensor> tensors = tensors_of(path);
    change(tensors);
    write_tensor_file(path, tensors);
    const std::string message = testing::message_of(base::ErrorKind::checkpoint,
                                                    [&] { (void)read(path, fixture, at::kFloat); });
    CHECK_THAT(message, Catch::Contains(path));
    return message;
  }

  TempFolder folder;
  std::string path = folder.path("model.safetensors");
  BdhFixture fixture;
};

NamedTensor& named(std::vector<NamedTensor>& tensors, std::string_view name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == name; });
}

TEST_CASE("A model file round-trips every weight bit for bit") {
  model::bdh::BdhSizes sizes = kSizes;
  sizes.tie_layers = GENERATE(true, false);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const Written written(sizes, dtype);
  const param::Arena arena = read(written.path, written.fixture, dtype);
  CHECK(arena.flat().scalar_type() == dtype);
  for (const param::ParameterId id : written.fixture.model->parameters.ids()) {
    CHECK(at::equal(arena.view(id), written.fixture.weights.view(id)));
  }
}

TEST_CASE("A model file has the reference's tensors, the frequencies and the metadata") {
  const Written written;
  const SafetensorsFile file = SafetensorsFile::open(written.path);
  std::vector<std::string> names;
  for (const auto& tensor : file.tensors()) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"attn.freqs", "decoder", "embed.weight", "encoder",
                                          "encoder_v", "lm_head"});
  const at::Tensor encoder = to_tensor(file.at("encoder"));  // (nh, D, N)
  CHECK(encoder.sizes() == at::IntArrayRef({3, 6, 4}));
  CHECK(at::equal(encoder, written.fixture.exported("encoder")));
  CHECK(to_tensor(file.at("attn.freqs")).sizes() == at::IntArrayRef({1, 1, 1, 4}));
  CHECK(file.metadata().at("dtrain.model") == "{}");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(format::verify_checksum(file));
}

TEST_CASE("A float64 model is rounded to float32, and read back exactly") {
  const Written wide(kSizes, at::kDouble);
  const param::Arena narrow = read(wide.path, wide.fixture, at::kFloat);
  CHECK(at::equal(narrow.view(0_p), wide.fixture.weights.view(0_p).to(at::kFloat)));
  const Written float32(kSizes, at::kFloat);
  CHECK(at::equal(read(float32.path, float32.fixture, at::kDouble).view(0_p),
                  float32.fixture.weights.view(0_p).to(at::kDouble)));
}

TEST_CASE("Missing, unknown, misshapen and non-float tensors are rejected by name") {
  using Tensors = std::vector<NamedTensor>;
  const std::vector<std::pair<std::function<void(Tensors&)>, testing::Names>> changes{
      {[](Tensors& tensors) {
         std::erase_if(tensors, [](const NamedTensor& t) { return t.name == "decoder"; });
       },
       testing::Names("decoder")},
      {[](Tensors& tensors) {
         named(tensors, "encoder").value = at::zeros({3, 4, 6});
       },
       testing::Names("encoder", "(3, 4, 6)", "(3, 6, 4)")},
      {[](Tensors& tensors) {
         tensors.push_back({"bias", at::zeros({1})});
       },
       testing::Names("bias")},
      {[](Tensors& tensors) {
         named(tensors, "lm_head").value = at::ones({6, 9}, at::kInt);
       },
       testing::Names("lm_head", "I32")}};
  for (const auto& [change, names] : changes) CHECK_THAT(Written().refusal(change), names);
}

TEST_CASE("Weights that are not finite in the model's dtype are rejected by name") {
  const double value = GENERATE(std::nan(""), -HUGE_VAL, 1e300);
  const Written written(kSizes, at::kDouble);
  std::vector<NamedTensor> tensors = tensors_of(written.path);
  named(tensors, "encoder_v").value[2][5][3] = value;
  write_tensor_file(written.path, tensors);
  const param::ParameterSpecs& specs = written.fixture.model->parameters;
  ArenaSource source(specs, read(written.path, written.fixture, at::kFloat));
  FiniteSource finite(source, written.path);
  for (const param::ParameterId id : specs.ids()) {
    const param::ParameterSpec& spec = specs[id];
    const Piece piece{.name = kWeightPrefix + spec.name,
                      .global_shape = spec.shape,
                      .box = format::whole(spec.shape),
                      .tensor = at::empty(spec.shape)};
    if (spec.name != "encoder_v") {
      CHECK_NOTHROW(finite.read(piece));
      continue;
    }
    CHECK_THAT(testing::message_of(base::ErrorKind::checkpoint, [&] { finite.read(piece); }),
               testing::Names(written.path, "'model.encoder_v'"));
  }
}

TEST_CASE("Parts of parameters are read straight from a file") {
  Written written;
  const param::ParameterSpecs& specs = written.fixture.model->parameters;
  const format::WeightFile file = format::WeightFile::open(written.path);
  ModelFileSource source(file, specs);
  for (const param::ParameterId id : specs.ids()) {
    const param::ParameterSpec& spec = specs[id];
    Piece piece{.name = kWeightPrefix + spec.name,
                .global_shape = spec.shape,
                .box = format::whole(spec.shape),
                .tensor = {}};
    piece.box.offsets[0] = 1;
    piece.box.sizes[0] -= 2;
    piece.tensor = at::empty(piece.box.sizes, at::kDouble);
    CHECK(source.has(piece.name));
    source.read(piece);
    const at::Tensor expected =
        written.fixture.weights.view(id).narrow(0, 1, piece.box.sizes[0]).to(at::kDouble);
    CHECK(at::equal(piece.tensor, expected));
  }
  CHECK_FALSE(source.has("model.unknown"));
}

TEST_CASE("An alias must equal its parameter") {
  Written written;
  std::vector<NamedTensor> tensors = tensors_of(written.path);
  tensors.push_back({"again", named(tensors, "decoder").value.clone()});
  Constants constants = constants_of(written.fixture);
  constants.aliases = {{.name = "again", .parameter = "decoder"}};
  const auto check = [&] {
    write_tensor_file(written.path, tensors);
    return check_model_file(format::WeightFile::open(written.path),
                            written.fixture.model->parameters, constants);
  };
  CHECK_THAT(check(), testing::Names("again"));
  tensors.back().value.flatten()[5] += 1;
  CHECK_THAT(testing::message_of(base::ErrorKind::checkpoint, [&] { (void)check(); }),
             testing::Names(written.path, "again", "decoder"));
}

TEST_CASE("A value that is not finite is found in any floating-point dtype") {
  const BdhFixture fixture(kSizes, at::kFloat);
  const param::ParameterSpecs& specs = fixture.model->parameters;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto allocate = [](std::int64_t bytes) { return at::zeros({bytes}, at::kByte); };
    param::Arena arena(param::ArenaLayout(specs), dtype, allocate);
    CHECK_NOTHROW(check_finite(state_of(specs, arena), "the file"));
    arena.view(1_p).flatten()[3] = HUGE_VAL;
    CHECK_THAT(testing::message_of(base::ErrorKind::checkpoint,
                                   [&] { check_finite(state_of(specs, arena), "the file"); }),
               testing::Names("the file", "'model." + specs[1_p].name + "'"));
  }
}

TEST_CASE("Other frequencies are refused; missing ones are not needed") {
  // A merged model repeats the frequencies: it has the shape of a plain one.
  const std::string message = Written().refusal([](auto& tensors) {
    at::Tensor& frequencies = named(tensors, "attn.freqs").value;
    frequencies.slice(3, 2, 4).copy_(frequencies.slice(3, 0, 2).clone());
  });
  CHECK_THAT(message, Catch::Contains("'attn.freqs'"));

  const Written written;
  std::vector<NamedTensor> tensors = tensors_of(written.path);
  std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.name == "attn.freqs"; });
  write_tensor_file(written.path, tensors);
  CHECK_NOTHROW((void)read(written.path, written.fixture, at::kFloat));
}

}  // namespace
}  // namespace dtrain::checkpoint::model_file_test
