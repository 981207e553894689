#include "colossal/ops/products/prepacked_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/huge_pages.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/products/prepacked_rows.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/ops/thread_team.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr int64_t kOutputs = kPanelOutputs;
// Below these sizes a loop takes no longer than it takes to wake a thread.
constexpr int64_t kShortLayout = int64_t{1} << 14;   // numbers of x
constexpr int64_t kShortProduct = int64_t{1} << 15;  // bytes of weights times blocks of rows

/// Returns true for a tensor of the host, or of a recorded step that stands for one on the CPU.
bool is_on_cpu(const at::Tensor& x) { return x.is_cpu() || (x.is_meta() && tensor::is_for_cpu(x)); }

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Calls body(index) for all items: on the team of this thread, or in this thread if that is shorter.
void run_items(bool is_short, int64_t items, const std::function<void(int64_t)>& body,
               const std::vector<Streamed>& streamed = {}) {
  if (!is_short) return ThreadTeam::of_this_thread().run(items, body, streamed);
  for (int64_t index = 0; index < items; ++index) body(index);
}

/// Calls panel(index) for all panels, over threads.
template <class Panel>
void for_panels(int64_t outputs, const Panel& panel) {
  parallel_for(0, rounded_up(outputs, kOutputs) / kOutputs, 1, [&](int64_t from, int64_t to) {
    for (int64_t index = from; index < to; ++index) panel(index);
  });
}

PrepackedKernels::Multiply fp8_product(const PrepackedKernels& kernels, bool is_bf16) {
  return is_bf16 && kernels.multiply_fp8_bf16 ? kernels.multiply_fp8_bf16 : kernels.multiply_fp8;
}

/// The rows of a weight, which several tensors [rows, in] hold one after the other.
class WeightRows {
 public:
  explicit WeightRows(const std::vector<at::Tensor>& parts) : parts_(parts) {
    for (const at::Tensor& part : parts_) {
      require(is_on_cpu(part) && part.is_meta() == has_no_values() && part.dim() == 2 && part.size(1) > 0 &&
                  part.size(1) == inputs() &&
                  (part.scalar_type() == at::kFloat || part.scalar_type() == at::kBFloat16 ||
                   part.scalar_type() == at::kHalf),
              "prepacked", "weights must be fp32, bf16 or fp16 [out, in] on the CPU: got ",
              toString(part.scalar_type()), " of ", part.dim(), " dimensions");
      outputs_ += part.size(0);
    }
    require(!parts_.empty(), "prepacked", "a weight must have at least one part");
  }

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return parts_.front().size(-1); }
  /// Returns true if the rows are shapes alone.
  bool has_no_values() const { return parts_.front().is_meta(); }

  /// Calls body(rows of one part with dense elements, number of rows before them) for rows [first, first + count).
  template <class Body>
  void for_rows(int64_t first, int64_t count, const Body& body) const {
    int64_t begin = 0;
    for (const at::Tensor& part : parts_) {
      const int64_t from = std::max(first, begin), to = std::min(first + count, begin + part.size(0));
      if (from < to) {
        const at::Tensor rows = part.narrow(0, from - begin, to - from);
        body(rows.stride(1) == 1 ? rows : rows.contiguous(), from - first);
      }
      begin += part.size(0);
    }
  }

 private:
  const std::vector<at::Tensor>& parts_;
  int64_t outputs_ = 0;
};

}  // namespace

PrepackedMatrix::PrepackedMatrix(PackedType type, int64_t outputs, int64_t inputs, int64_t group, bool minima,
                                 bool has_values)
    : type_(type), outputs_(outputs), inputs_(inputs), group_(group), minima_(minima) {
  const int64_t half_bytes = kOutputs * 2 * (minima ? 2 : 1);
  switch (type) {
    case PackedType::Float:
      padded_ = inputs, panel_bytes_ = padded_ * kOutputs * 4;
      break;
    case PackedType::Bf16:
      padded_ = rounded_up(inputs, 2), panel_bytes_ = padded_ * kOutputs * 2;
      break;
    case PackedType::Fp8:
      padded_ = rounded_up(inputs, 2), panel_bytes_ = (padded_ + sizeof(float)) * kOutputs;
      break;
    default:
      padded_ = rounded_up(inputs, group);
      panel_bytes_ = padded_ / group * (group * kOutputs / (type == PackedType::Int8 ? 1 : 2) + half_bytes);
  }
  const int64_t panels = rounded_up(outputs, kOutputs) / kOutputs;
  const int64_t bytes = panels * panel_bytes_;
  panels_ = has_values ? empty_in_huge_pages({bytes}, at::kByte)
                       : at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kMeta));
}

char* PrepackedMatrix::panel(int64_t index) const {
  return static_cast<char*>(panels_.mutable_data_ptr()) + index * panel_bytes_;
}

PrepackedMatrix PrepackedMatrix::of(const at::Tensor& weight, PackedType type) {
  return of(std::vector<at::Tensor>{weight}, type);
}

PrepackedMatrix PrepackedMatrix::of(const std::vector<at::Tensor>& parts, PackedType type) {
  require(type == PackedType::Float || type == PackedType::Bf16 || type == PackedType::Fp8, "prepacked",
          "codes are packed from GroupCodes, numbers as Float, Bf16 or Fp8");
  const WeightRows weight(parts);
  PrepackedMatrix packed(type, weight.outputs(), weight.inputs(), 0, false, !weight.has_no_values());
  if (weight.has_no_values()) return packed;
  if (type == PackedType::Fp8) {
    packed.put_fp8(parts.size() == 1 ? parts.front() : at::cat(parts));
    return packed;
  }
  packed.put(parts);
  return packed;
}

void PrepackedMatrix::put(const std::vector<at::Tensor>& parts) {
  const WeightRows weight(parts);
  require((type_ == PackedType::Float || type_ == PackedType::Bf16) && weight.outputs() == outputs_ &&
              weight.inputs() == inputs_,
          "prepacked", "numbers of a packed weight must have its shape [", outputs_, ", ", inputs_, "]: got [",
          weight.outputs(), ", ", weight.inputs(), "]");
  require(weight.has_no_values() == panels_.is_meta(), "prepacked",
          "a weight must be packed again from a tensor of the same kind: got shapes for values, or values for shapes");
  if (panels_.is_meta()) return;
  const PrepackedKernels& kernels = prepacked_kernels();
  const auto lay_out = type_ == PackedType::Float ? kernels.lay_out_float : kernels.lay_out_bf16;
  for_panels(outputs_, [&](int64_t index) {
    const int64_t first = index * kOutputs, count = std::min(kOutputs, outputs_ - first);
    char* out = panel(index);
    if (count < kOutputs) std::memset(out, 0, panel_bytes_);
    // A unit is one fp32 or two bf16 elements; the units of all outputs are stored side by side.
    weight.for_rows(first, count, [&](const at::Tensor& rows, int64_t before) {
      lay_out({.x = rows.const_data_ptr(),
               .type = narrow_type(rows),
               .stride = rows.stride(0) * static_cast<int64_t>(rows.itemsize()),
               .rows = rows.size(0),
               .inputs = inputs_,
               .padded = padded_,
               .out = out + before * 4,
               .pitch = kOutputs});
    });
  });
}

void PrepackedMatrix::put_fp8(const at::Tensor& weight) {
  const RowCodes rows = encode_rows(weight, at::kFloat8_e4m3fn);
  const at::Tensor codes = rows.codes.contiguous(), scales = rows.scales.contiguous();
  require(scales.isfinite().all().item<bool>(), "quantization", "weights must be finite");
  const auto* code = static_cast<const char*>(codes.const_data_ptr());
  for_panels(outputs_, [&](int64_t index) {
    const int64_t first = index * kOutputs, count = std::min(kOutputs, outputs_ - first);
    char* out = panel(index);
    if (count < kOutputs) std::memset(out, 0, panel_bytes_);
    for (int64_t k = 0; k < inputs_; ++k)
      for (int64_t n = 0; n < count; ++n) out[k * kOutputs + n] = code[(first + n) * inputs_ + k];
    std::memset(out + inputs_ * kOutputs, 0, static_cast<size_t>((padded_ - inputs_) * kOutputs));
    std::memcpy(out + padded_ * kOutputs, scales.const_data_ptr<float>() + first, count * sizeof(float));
  });
}

PrepackedMatrix::PrepackedMatrix(const GroupCodes& codes)
    : PrepackedMatrix((codes.check(), codes.bits == 8 ? PackedType::Int8 : PackedType::Int4), codes.outputs(),
                      codes.inputs(), codes.group, codes.minima.defined(), /*has_values=*/true) {
  scale_factor_ = std::max(binary16_factor(codes.scales), minima_ ? binary16_factor(codes.minima) : 0);
  const auto stored = [&](const at::Tensor& of_groups) {
    return of_groups.defined() ? (of_groups / static_cast<double>(scale_factor_)).to(at::kHalf).contiguous()
                               : of_groups;
  };
  const at::Tensor bytes = codes.codes.contiguous(), scales = stored(codes.scales), minima = stored(codes.minima);
  const auto* code = bytes.const_data_ptr<uint8_t>();
  const auto* scale = static_cast<const uint16_t*>(scales.const_data_ptr());
  const auto* minimum = minima_ ? static_cast<const uint16_t*>(minima.const_data_ptr()) : nullptr;
  const int64_t groups = padded_ / group_;
  const bool eight = type_ == PackedType::Int8;
  const int64_t code_bytes = group_ * kOutputs / (eight ? 1 : 2), group_bytes = panel_bytes_ / groups;
  const auto lay_out = eight ? prepacked_kernels().lay_out_bytes : prepacked_kernels().lay_out_halves;
  for_panels(outputs_, [&](int64_t index) {
    const int64_t first = index * kOutputs, count = std::min(kOutputs, outputs_ - first);
    if (count < kOutputs) std::memset(panel(index), 0, panel_bytes_);  // scales of padding are 0
    for (int64_t g = 0; g < groups; ++g) {
      char* group = panel(index) + g * group_bytes;
      lay_out({.x = code + first * inputs_ + g * group_,
               .stride = inputs_,
               .rows = count,
               .inputs = std::min(group_, inputs_ - g * group_),
               .padded = group_,
               .out = group,
               .pitch = kOutputs});
      auto* halves = reinterpret_cast<uint16_t*>(group + code_bytes);
      for (int64_t n = 0; n < count; ++n) {
        halves[n] = scale[(first + n) * groups + g];
        if (minima_) halves[kOutputs + n] = minimum[(first + n) * groups + g];
      }
    }
  });
}

at::Tensor PrepackedMatrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  return multiply_by(prepacked_kernels(), x, bias);
}

at::Tensor PrepackedMatrix::product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const bool is_narrow = weight.scalar_type() == at::kBFloat16;
  return of(weight, is_narrow ? PackedType::Bf16 : PackedType::Float)
      .multiply(x, bias.defined() ? bias.to(at::kFloat).contiguous() : bias);
}

int64_t PrepackedMatrix::panels() const { return rounded_up(outputs_, kOutputs) / kOutputs; }

void PrepackedMatrix::check_rows(const at::Tensor& x) const {
  require(x.device() == panels_.device() && x.dim() > 0 && x.size(-1) == inputs_ &&
              (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
          "prepacked", "x must be fp32 or bf16 [..., ", inputs_, "] on the CPU: got ", toString(x.scalar_type()),
          " [..., ", x.dim() > 0 ? x.size(-1) : 0, "]");
}

/// The product of a matrix with some rows.
struct PrepackedMatrix::Work {
  Work(const PrepackedMatrix& with, const PrepackedKernels& kernels, const at::Tensor& x, const char* first_row,
       int64_t count, const float* bias, char* result)
      : matrix(&with),
        rows(first_row, count, {with.type_, x.scalar_type() == at::kBFloat16, with.inputs_, with.padded_, with.group_},
             with.scale_factor_, kernels),
        biases(bias),
        y(result),
        is_bf16(x.scalar_type() == at::kBFloat16) {
    tensor::announce_product(count, with.outputs_, with.inputs_, x.scalar_type());
  }
  const PrepackedMatrix* matrix;
  PrepackedRows rows;
  const float* biases;  // null = none
  char* y;              // [count, outputs], in the dtype of x
  bool is_bf16;
};

/// Returns the memory of the layout of `x`, and announces the product, as a product with values does.
at::Tensor PrepackedMatrix::lay_out_shapes(const at::Tensor& x, const PrepackedKernels& kernels) const {
  const int64_t rows = inputs_ == 0 ? 0 : x.numel() / inputs_;
  const PackedInputs inputs{type_, x.scalar_type() == at::kBFloat16, inputs_, padded_, group_};
  tensor::announce_product(rows, outputs_, inputs_, x.scalar_type());
  return at::empty({PrepackedRows::bytes_of(rows, inputs, kernels)}, panels_.options());
}

void PrepackedMatrix::multiply_panel(int64_t index, const PrepackedKernels& kernels, const Work& work) const {
  const auto multiply_block = type_ == PackedType::Float  ? kernels.multiply_float
                              : type_ == PackedType::Bf16 ? kernels.multiply_bf16
                              : type_ == PackedType::Fp8  ? fp8_product(kernels, work.is_bf16)
                              : type_ == PackedType::Int8 ? kernels.multiply_int8
                                                          : kernels.multiply_int4;
  const int64_t column = index * kOutputs, item = work.is_bf16 ? 2 : 4;
  PanelProduct product{.inputs = padded_, .group = group_, .minima = minima_, .panel = panel(index)};
  product.bias = work.biases ? work.biases + column : nullptr;
  product.stride = outputs_;
  product.columns = std::min(kOutputs, outputs_ - column);
  product.narrow = work.is_bf16;
  for (int64_t b = 0; b < work.rows.blocks(); ++b) {
    work.rows.place(b, product);
    product.y = work.y + (work.rows.first_of(b) * outputs_ + column) * item;
    multiply_block(product, work.rows.rows_of(b));
  }
}

/// Runs products with matrices of one shape: a loop over all blocks of rows, then one over all panels.
void PrepackedMatrix::run(const std::vector<Work>& all, const PrepackedKernels& kernels) {
  std::vector<std::pair<const PrepackedRows*, int64_t>> blocks;
  for (const Work& work : all)
    for (int64_t b = 0; b < work.rows.blocks(); ++b) blocks.emplace_back(&work.rows, b);
  const PrepackedMatrix& first = *all.front().matrix;
  int64_t rows = 0;
  for (const Work& work : all) rows += work.rows.rows();
  const auto lay_out = [&](int64_t i) { blocks[static_cast<size_t>(i)].first->lay_out(blocks[i].second); };
  run_items(rows * first.padded_ < kShortLayout, static_cast<int64_t>(blocks.size()), lay_out);
  const int64_t panels = first.panels(), items = static_cast<int64_t>(all.size()) * panels;
  const auto multiply_one = [&](int64_t index) {
    const Work& work = all[static_cast<size_t>(index / panels)];
    work.matrix->multiply_panel(index % panels, kernels, work);
  };
  std::vector<Streamed> streamed;
  for (const Work& work : all) streamed.push_back({work.matrix->panel(0), work.matrix->bytes()});
  run_items(static_cast<int64_t>(blocks.size()) * first.bytes() < kShortProduct, items, multiply_one, streamed);
}

at::Tensor PrepackedMatrix::multiply_by(const PrepackedKernels& kernels, const at::Tensor& x,
                                        const at::Tensor& bias) const {
  check_rows(x);
  require(!bias.defined() || (bias.device() == panels_.device() && bias.scalar_type() == at::kFloat &&
                              bias.numel() == outputs_ && bias.is_contiguous()),
          "prepacked", "the bias must be fp32 [", outputs_, "] on the CPU");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = outputs_;
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  const at::Tensor dense = x.contiguous();
  if (panels_.is_meta()) {
    lay_out_shapes(dense, kernels);
    return y;
  }
  std::vector<Work> work;
  work.emplace_back(*this, kernels, dense, static_cast<const char*>(dense.const_data_ptr()), x.numel() / inputs_,
                    bias.defined() ? bias.const_data_ptr<float>() : nullptr, static_cast<char*>(y.mutable_data_ptr()));
  run(work, kernels);
  return y;
}

at::Tensor PrepackedMatrix::multiply_groups(const std::vector<const PrepackedMatrix*>& matrices, const at::Tensor& x,
                                            const std::vector<int64_t>& ends) {
  require(!ends.empty() && ends.size() == matrices.size() && x.dim() == 2 && ends.back() == x.size(0), "prepacked",
          "groups must cover the rows of x: got ", ends.size(), " ends and ", matrices.size(), " matrices for ",
          x.sizes());
  const PrepackedKernels& kernels = prepacked_kernels();
  const auto some =
      std::find_if(matrices.begin(), matrices.end(), [](const auto* matrix) { return matrix != nullptr; });
  const int64_t outputs = some == matrices.end() ? 0 : (*some)->outputs_;
  at::Tensor y = at::empty({x.size(0), outputs}, x.options().requires_grad(false));
  const at::Tensor dense = x.contiguous();
  const bool has_values = !x.is_meta();
  const auto* in = has_values ? static_cast<const char*>(dense.const_data_ptr()) : nullptr;
  auto* out = has_values ? static_cast<char*>(y.mutable_data_ptr()) : nullptr;
  const auto item = static_cast<int64_t>(x.itemsize());
  std::vector<Work> work;
  std::vector<at::Tensor> laid_out;  // of shapes: what `work` takes
  int64_t first = 0;
  for (size_t e = 0; e < ends.size(); first = ends[e++]) {
    if (ends[e] == first) continue;
    const PrepackedMatrix* matrix = matrices[e];
    require(matrix && matrix->outputs_ == outputs && matrix->inputs_ == x.size(1), "prepacked",
            "matrices of groups with rows must have one shape: group ", e, " differs");
    if (work.empty()) matrix->check_rows(x);
    if (!has_values) {
      laid_out.push_back(matrix->lay_out_shapes(dense.narrow(0, first, ends[e] - first), kernels));
      continue;
    }
    work.emplace_back(*matrix, kernels, dense, in + first * x.size(1) * item, ends[e] - first, nullptr,
                      out + first * outputs * item);
  }
  if (!work.empty()) run(work, kernels);
  return y;
}

}  // namespace colossal::ops
