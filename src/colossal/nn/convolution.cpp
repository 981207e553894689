#include "colossal/nn/convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/low_rank_convolution.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/apply_function.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void require_kernel(const at::Tensor& weight) {
  require(weight.dim() == 4, "model", "the weight of a convolution must be [out, in, rows, columns]: got ",
          weight.sizes(), "; set LinearOptions::taps to two sizes");
}

/// What a node needs besides its saved tensors.
struct ConvolutionCall : torch::CustomClassHolder {
  ConvolutionCall(const DirectProduct& product, Pictures pictures, Unary before)
      : product(product),
        adapter(dynamic_cast<const ConvolutionLowRank*>(&product)),
        pictures(pictures),
        before(std::move(before)) {}
  const DirectProduct& product;
  const ConvolutionLowRank* const adapter;  // null = none
  const Pictures pictures;
  const Unary before;         // empty = none
  std::vector<int64_t> read;  // sizes of the pictures that the convolution read
  bool has_bias_gradient = false, trains_adapter = false;
};

at::Tensor rows_of_pixels(const at::Tensor& pictures) { return pictures.reshape({-1, pictures.size(-1)}); }

/// One convolution of this rank's blocks, with the communication of the product.
struct DirectConvolution : torch::autograd::Function<DirectConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& a,
                            const std::optional<at::Tensor>& b, const c10::intrusive_ptr<ConvolutionCall>& call) {
    const DirectProduct& product = call->product;
    const at::Tensor added = bias.value_or(at::Tensor());
    const at::Tensor grid = as_pictures(call->before ? call->before(x) : x, call->pictures.size)
                                .contiguous();  // not a part of a larger one
    const at::Tensor narrow = a ? ops::convolution_forward(grid, *a, {}, call->pictures.window) : at::Tensor();
    if (context) {
      call->trains_adapter = a && (a->requires_grad() || b->requires_grad());
      // The result of `before` is computed again. The gradient of x needs the sizes of the pictures alone.
      context->save_for_backward(
          {call->before || !(weight.requires_grad() || call->trains_adapter) ? at::Tensor() : grid, weight,
           call->before ? x : at::Tensor(), a.value_or(at::Tensor()), b.value_or(at::Tensor()),
           call->trains_adapter ? narrow : at::Tensor()});
      context->saved_data["call"] = c10::IValue::make_capsule(call);
      call->read = grid.sizes().vec();
      call->has_bias_gradient = bias.has_value() && bias->requires_grad();
    }
    at::Tensor y = as_pixels(
        ops::convolution_forward(grid, weight, product.sums_y() ? at::Tensor() : added, call->pictures.window));
    if (a) {
      at::Tensor rows = y.view({-1, y.size(-1)});
      ops::matmul_nt_(rows, rows_of_pixels(narrow), *b * call->adapter->scale(), 1);
    }
    return product.complete_y(std::move(y), added);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = c10::static_intrusive_pointer_cast<ConvolutionCall>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const ops::PictureSize size = call->pictures.window.of(call->pictures.size, {weight.size(2), weight.size(3)});
    const at::Tensor dy = as_pictures(gradients[0].contiguous(), size);
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1),
               wants_own = call->trains_adapter;
    at::Tensor source, input;  // connected by autograd if `before` is given
    if (call->before && (wants_x || wants_weight || wants_own)) {
      const at::AutoGradMode again(wants_x);
      source = saved[2].detach().requires_grad_(wants_x);
      input = call->before(source);
    }
    at::Tensor grid = saved[0];
    if (!grid.defined() && (wants_weight || wants_own)) grid = as_pictures(input.detach(), call->pictures.size);
    if (!grid.defined()) grid = at::empty(call->read, dy.options());
    const auto gradients_of = [&](bool x, bool own, bool bias) {
      return ops::convolution_backward(dy, grid, weight, call->pictures.window, {x, own, bias});
    };
    const at::Tensor &a = saved[3], &b = saved[4];
    at::Tensor narrow;  // the gradient of A * x
    if (a.defined() && (wants_x || wants_own))
      narrow =
          ops::matmul_nn(rows_of_pixels(dy), b * call->adapter->scale()).view({dy.size(0), dy.size(1), dy.size(2), -1});
    const auto gradients_of_a = [&](bool x, bool own) {
      return ops::convolution_backward(narrow, grid, a, call->pictures.window, {x, own, false});
    };
    at::Tensor dx;
    std::function<void()> finish;
    if (wants_x) {
      dx = as_pixels(gradients_of(true, false, false)[0]);
      if (a.defined()) dx = dx + as_pixels(gradients_of_a(true, false)[0]);
      finish = call->product.complete_dx(dx);  // communicates while the other gradients are computed
    }
    const auto own = gradients_of(false, wants_weight, call->has_bias_gradient);
    at::Tensor of_a, of_b;
    if (wants_own) {
      of_a = gradients_of_a(false, true)[1];
      of_b = ops::matmul_tn(rows_of_pixels(dy), rows_of_pixels(saved[5])).mul_(call->adapter->scale());
    }
    if (finish) finish();
    if (call->before && wants_x) {
      torch::autograd::backward({input}, {dx});
      dx = source.grad();
    }
    return {dx, own[1], own[2], of_a, of_b, {}};
  }
};

/// The convolution as one product, whose inputs are the features of all taps of a pixel. So a product that gathers or
/// sums blocks does so once. The taps are laid side by side again in backward, instead of being kept.
at::Tensor product_of_taps(const Product& product, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& bias, int64_t out, const Pictures& pictures, const Unary& before) {
  const ops::PictureSize kernel{weight.size(2), weight.size(3)};
  const Unary taps = [=](const at::Tensor& pixels) {
    const at::Tensor grid = as_pictures(before ? before(pixels) : pixels, pictures.size);
    return as_pixels(ops::unfolded(grid, kernel, pictures.window));
  };
  return linear(product, x, weight.permute({0, 2, 3, 1}).flatten(1), bias, out, nullptr, taps);
}

class FeaturePictures final : public PictureEmbedding {
 public:
  FeaturePictures(Layers& make, const std::string& name, int64_t channels, int64_t hidden, int64_t kernel,
                  double deviation)
      : weight_(make.vector(name + ".weight", {hidden, channels, kernel, kernel},
                            {.init = Init::normal(deviation), .decay = true})),
        bias_(make.vector(name + ".bias", {hidden}, {})),
        product_(make.parameters().product_between_blocks(weight_->parameter())) {}
  at::Tensor forward(const at::Tensor& rows, const ops::Window& window) override {
    const at::Tensor weight = weight_->value();
    const at::Tensor pixels = rows.permute({0, 2, 3, 1}).to(weight.scalar_type()).contiguous();
    return convolved(*product_, as_pixels(pixels), weight, bias_->value(), weight.size(0),
                     {{pixels.size(1), pixels.size(2)}, window});
  }

 private:
  std::unique_ptr<Vector> weight_, bias_;
  std::shared_ptr<const Product> product_;
};

}  // namespace

std::unique_ptr<PictureEmbedding> Layers::picture_embedding(const std::string& name, int64_t channels, int64_t hidden,
                                                            int64_t kernel, double deviation) {
  return std::make_unique<FeaturePictures>(*this, name, channels, hidden, kernel, deviation);
}

at::Tensor as_pictures(const at::Tensor& x, const ops::PictureSize& size) {
  require(x.dim() == 3 && x.size(1) == size.pixels(), "model", "pictures of ", size.height, " x ", size.width,
          " must be [B, ", size.pixels(), ", features]: got ", x.sizes(),
          "; pass the sizes of these pictures, and leave out parallel.sequence and parallel.tensor.sequence");
  return x.unflatten(1, {size.height, size.width});
}

at::Tensor as_pixels(const at::Tensor& pictures) { return pictures.flatten(1, 2); }

at::Tensor convolved(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     int64_t out, const Pictures& pictures, const Unary& before) {
  require_kernel(weight);
  const auto* direct = dynamic_cast<const DirectProduct*>(&product);
  if (!direct) return product_of_taps(product, x, weight, bias, out, pictures, before);
  const auto call = c10::make_intrusive<ConvolutionCall>(*direct, pictures, before);
  using Given = std::optional<at::Tensor>;
  const auto of_adapter = [&](const at::Tensor& matrix) -> Given { return matrix.to(weight.scalar_type()); };
  return tensor::apply_function<DirectConvolution>(x, weight, bias.defined() ? Given(bias) : std::nullopt,
                                                   call->adapter ? of_adapter(call->adapter->a()) : std::nullopt,
                                                   call->adapter ? of_adapter(call->adapter->b()) : std::nullopt, call);
}

at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Pictures& pictures) {
  require_kernel(weight);
  return as_pixels(ops::convolution(as_pictures(x, pictures.size), weight, bias, pictures.window));
}

}  // namespace colossal::nn
