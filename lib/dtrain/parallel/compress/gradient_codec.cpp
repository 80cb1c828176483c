#include "dtrain/parallel/compress/gradient_codec.h"

namespace dtrain::parallel {
namespace {

class DtypeCodec final : public GradientCodec {
 public:
  explicit DtypeCodec(at::ScalarType dtype) : dtype_(dtype) {}

  [[nodiscard]] at::ScalarType dtype() const override { return dtype_; }
  [[nodiscard]] bool copies(at::ScalarType held) const override { return held != dtype_; }
  [[nodiscard]] at::Tensor encode(const at::Tensor& gradients) const override {
    return gradients.to(dtype_);
  }
  void decode(const at::Tensor& sum, const at::Tensor& gradients) const override {
    gradients.copy_(sum);
  }

 private:
  at::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<const GradientCodec> travel_in(at::ScalarType dtype) {
  return std::make_shared<DtypeCodec>(dtype);
}

}  // namespace dtrain::parallel
