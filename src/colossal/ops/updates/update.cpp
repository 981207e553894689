#include "colossal/ops/updates/update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/random.h"
#include "colossal/ops/updates/adam_factors.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

constexpr int64_t kUpdateGrain = 16384;
constexpr int64_t kUpdateRun = 1024;  // random words drawn at a time
// random words drawn at a time by tensor operators, which need several int64 tensors of that length
constexpr int64_t kWordSlice = 1 << 20;

void check(const char* rule, const FlatUpdate& u, const std::vector<at::Tensor>& states) {
  const auto type = u.values.scalar_type(), gradient = u.gradients.scalar_type();
  const auto fits = [&](const at::Tensor& t) {
    return t.dim() == 1 && t.is_contiguous() && t.numel() == u.values.numel() && t.device() == u.values.device();
  };
  require(fits(u.values) && fits(u.gradients) && (!u.copy.defined() || fits(u.copy)), rule,
          "buffers must be contiguous, 1-D, of equal length and on one device: got values ", u.values.sizes(), " on ",
          u.values.device(), ", gradients ", u.gradients.sizes(), " on ", u.gradients.device());
  for (const at::Tensor& state : states)
    require(fits(state) && state.scalar_type() == type, rule, "states must be like the values, ", u.values.sizes(),
            " of ", type, ": got ", state.sizes(), " of ", state.scalar_type());
  require(gradient == type || (narrow_type(u.gradients) != Narrow::None && type == at::kFloat), rule,
          "gradients must have the dtype of the values, or be bf16 or fp16 with fp32 values: got ", gradient, " and ",
          type);
  require(!u.copy.defined() || (narrow_type(u.copy) != Narrow::None && type != at::kDouble), rule,
          "the rounded copy must be bf16 or fp16, of fp32 or bf16 values: got ",
          u.copy.defined() ? u.copy.scalar_type() : type, " of ", type);
  require(!u.chance || type == at::kBFloat16, rule, "stochastic rounding needs bf16 values: got ", type);
}

void changed(const FlatUpdate& u, const at::Tensor& out, const std::vector<at::Tensor>& states) {
  out.unsafeGetTensorImpl()->bump_version();
  if (u.copy.defined()) u.copy.unsafeGetTensorImpl()->bump_version();
  for (const at::Tensor& state : states) state.unsafeGetTensorImpl()->bump_version();
}

/// Returns true if a kernel of ours steps these values. No device kernel steps fp16 values.
bool is_stepped_by_us(const at::Tensor& values) {
  return has_kernel(values) || (has_device_kernels(values) && values.scalar_type() != at::kHalf);
}

char* byte_at(const at::Tensor& t, int64_t element) {
  return static_cast<char*>(t.mutable_data_ptr()) + element * t.element_size();
}

/// Returns the buffers from element `first` on, without the random words.
template <class T>
UpdateBuffers<T> buffers_of(const FlatUpdate& u, const at::Tensor& out, const std::vector<at::Tensor>& states,
                            int64_t first) {
  UpdateBuffers<T> buffers{};
  buffers.values = pointer<T>(u.values) + first;
  buffers.out = pointer<T>(out) + first;
  for (size_t s = 0; s < states.size(); ++s) buffers.states[s] = pointer<T>(states[s]) + first;
  buffers.gradients = byte_at(u.gradients, first);
  buffers.gradient_type = u.gradients.scalar_type() == u.values.scalar_type() ? Narrow::None : narrow_type(u.gradients);
  if (u.copy.defined()) buffers.copy = byte_at(u.copy, first);
  buffers.copy_type = narrow_type(u.copy);
  buffers.gradient_scale = static_cast<WideOf<T>>(u.gradient_scale);
  return buffers;
}

/// Runs the step on the threads of the CPU. Each thread draws its random words run by run.
template <class T, class Step>
void run_on_cpu(const FlatUpdate& u, const at::Tensor& out, const std::vector<at::Tensor>& states, const Step& step) {
  parallel_for(0, u.values.numel(), kUpdateGrain, [&](int64_t from, int64_t to) {
    uint32_t words[kUpdateRun];
    const int64_t stride = u.chance ? kUpdateRun : to - from;
    for (int64_t i = from; i < to; i += stride) {
      UpdateBuffers<T> part = buffers_of<T>(u, out, states, i);
      const int64_t count = std::min(stride, to - i);
      if (u.chance) {
        random_words(u.chance->seed, u.chance->first + static_cast<uint64_t>(i), count, words);
        part.words = {.wanted = true, .drawn = words};
      }
      step(part, count);
    }
  });
}

/// Runs a step on all elements. make_step(table) returns the rule's kernel in a table of the CPU or a device, as
/// step(buffers, n, stream of a device). It is called in the calling thread, because that thread's instruction set
/// counts. `out` receives the rule's new values.
template <class MakeStep>
void run(const FlatUpdate& u, const at::Tensor& out, const std::vector<at::Tensor>& states, const MakeStep& make_step) {
  const bool on_device = with_device_kernels(u.values, [&](auto element, const auto& table, void* stream) {
    using T = decltype(element);
    UpdateBuffers<T> whole = buffers_of<T>(u, out, states, 0);
    if (u.chance) whole.words = {.wanted = true, .seed = u.chance->seed, .first = u.chance->first};
    make_step(table)(whole, u.values.numel(), stream);
  });
  if (!on_device)
    with_element_type(u.values, [&](auto element) {
      using T = decltype(element);
      run_on_cpu<T>(u, out, states, make_step(kernels<T>()));
    });
  changed(u, out, states);
}

/// Computing type of the kernels of a table.
template <class Table>
using WideOfTable = typename Table::W;

at::Tensor wide(const at::Tensor& x, const FlatUpdate& u) { return x.to(wide_type(u.values)); }
at::Tensor scaled_gradient(const FlatUpdate& u) { return wide(u.gradients, u) * u.gradient_scale; }

/// Rounds `x` [n] (fp32) to bf16 by 16 bits of the elements' random words, from bit `shift` on. It works in slices,
/// because the words for a shard of a whole model would need many times its memory.
at::Tensor rounded_by_chance(const at::Tensor& x, const FlatUpdate::Chance& chance, int shift) {
  const auto first = static_cast<int64_t>(chance.first);
  at::Tensor rounded = at::empty_like(x);
  for (int64_t from = 0; from < x.numel(); from += kWordSlice) {
    const int64_t size = std::min(kWordSlice, x.numel() - from);
    const at::Tensor part = x.narrow(0, from, size),
                     index = at::arange(first + from, first + from + size, x.options().dtype(at::kLong)),
                     words = random_words_reference(index, chance.seed),
                     bits = words.bitwise_right_shift(shift).bitwise_and(0xFFFF).to(at::kInt);
    const at::Tensor sum = part.view(at::kInt) + bits;
    rounded.narrow(0, from, size).copy_(at::where(part.isnan(), part, sum.bitwise_and(-65536).view(at::kFloat)));
  }
  return rounded;
}

void write(const FlatUpdate& u, at::Tensor values, const std::vector<at::Tensor>& states,
           std::vector<at::Tensor> new_states) {
  if (u.chance && !values.is_meta()) {
    values = rounded_by_chance(values, *u.chance, 0);
    if (!states.empty()) new_states.back() = rounded_by_chance(new_states.back(), *u.chance, 16);
  }
  at::Tensor(u.values).copy_(values);
  if (u.copy.defined()) at::Tensor(u.copy).copy_(values);
  for (size_t i = 0; i < states.size(); ++i) at::Tensor(states[i]).copy_(new_states[i]);
}

std::vector<at::Tensor> if_defined(const at::Tensor& state) {
  if (!state.defined()) return {};
  return {state};
}

void check_sgd(const FlatUpdate& u, const at::Tensor& momentum, const SgdStep& step) {
  check("sgd", u, if_defined(momentum));
  require(momentum.defined() || (step.momentum == 0 && !step.nesterov), "sgd", "a momentum of ", step.momentum,
          " needs its state");
}

void check_adam(const FlatUpdate& u, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const AdamStep& step) {
  check("adam", u, {exp_avg, exp_avg_sq});
  require(step.step >= 1, "adam", "step must be at least 1: got ", step.step);
}

void check_direction(const FlatUpdate& u, const at::Tensor& direction, const at::Tensor& exp_avg,
                     const at::Tensor& exp_avg_sq, const AdamStep& step) {
  check("adam_direction", u, {exp_avg, exp_avg_sq, direction});
  require(!u.copy.defined() && !u.chance, "adam_direction",
          "does not change the values, so it supports no rounded copy and no stochastic rounding");
  require(step.step >= 1, "adam_direction", "step must be at least 1: got ", step.step);
}

struct AdamMoments {
  at::Tensor m, v, ratio;  ///< ratio: m / (sqrt(v) / sqrt(1 - b2^step) + epsilon)
};
AdamMoments adam_moments(const FlatUpdate& u, const at::Tensor& p, const at::Tensor& exp_avg,
                         const at::Tensor& exp_avg_sq, const AdamStep& step) {
  const at::Tensor g = scaled_gradient(u) + step.penalty * p, m = wide(exp_avg, u).lerp(g, 1 - step.beta1);
  const at::Tensor v = wide(exp_avg_sq, u) * step.beta2 + g * g * (1 - step.beta2);
  return {m, v, m / (v.sqrt() / std::sqrt(AdamCorrections(step).second) + step.epsilon)};
}

/// Returns true if gradients must be scaled or widened for a rule that takes gradients of the values' dtype.
bool is_prepared(const FlatUpdate& u) {
  return u.gradient_scale != 1 || u.gradients.scalar_type() != u.values.scalar_type();
}

/// Returns true if LibTorch's fused step computes the same as adam_(), for devices without kernels of ours. It supports
/// one of the two decays, rounds to nearest only, and takes gradients in the values' dtype. Scaling or converting
/// gradients of bf16 values would round once more.
bool has_library_step(const FlatUpdate& u, const AdamStep& step) {
  return is_for_accelerator(u.values) && !is_stepped_by_us(u.values) && !u.chance &&
         (step.penalty == 0 || step.weight_decay == 0) && !(is_prepared(u) && u.values.scalar_type() == at::kBFloat16);
}

/// Scales gradients before the call, because the library divides by the scale it gets and writes the scaled gradients
/// over the gradients.
void library_adam_(const FlatUpdate& u, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const AdamStep& step,
                   const at::Tensor& steps) {
  const at::Tensor gradient = is_prepared(u) ? scaled_gradient(u) : u.gradients;
  const at::Tensor &values = u.values, &m = exp_avg, &v = exp_avg_sq;
  constexpr bool kAmsgrad = false, kMaximize = false;
  // LibTorch has no kernel of these steps on meta; they take no memory.
  if (step.penalty != 0 && !values.is_meta())
    at::_fused_adam_(values, gradient, m, v, {}, steps, step.learning_rate, step.beta1, step.beta2, step.penalty,
                     step.epsilon, kAmsgrad, kMaximize);
  else if (!values.is_meta())
    at::_fused_adamw_(values, gradient, m, v, {}, steps, step.learning_rate, step.beta1, step.beta2, step.weight_decay,
                      step.epsilon, kAmsgrad, kMaximize);
  if (u.copy.defined()) at::Tensor(u.copy).copy_(u.values);
}

}  // namespace

void in_slices(const FlatUpdate& u, const std::vector<at::Tensor>& states,
               const std::function<void(const FlatUpdate&, const std::vector<at::Tensor>&)>& rule) {
  const int64_t size = u.values.numel();
  if (!is_for_accelerator(u.values) || size <= kSliceElements) return rule(u, states);
  for (int64_t from = 0; from < size; from += kSliceElements) {
    const auto of = [&](const at::Tensor& t) {
      return t.defined() ? t.narrow(0, from, std::min(kSliceElements, size - from)) : t;
    };
    FlatUpdate part{of(u.values), of(u.gradients), of(u.copy), u.gradient_scale, u.chance};
    if (part.chance) part.chance->first += static_cast<uint64_t>(from);
    std::vector<at::Tensor> part_states;
    for (const at::Tensor& state : states) part_states.push_back(of(state));
    rule(part, part_states);
  }
}

void sgd_reference_(const FlatUpdate& u, const at::Tensor& momentum, const SgdStep& step) {
  check_sgd(u, momentum, step);
  const at::NoGradGuard no_grad;
  const at::Tensor p = wide(u.values, u), g = (scaled_gradient(u) + step.weight_decay * p) * step.intake;
  const at::Tensor b = momentum.defined() ? wide(momentum, u) * step.momentum + g : g;
  const at::Tensor direction = step.nesterov ? g + step.momentum * b : b;
  write(u, p - step.learning_rate * direction, if_defined(momentum), {b});
}

void sgd_(const FlatUpdate& u, const at::Tensor& momentum, const SgdStep& step) {
  check_sgd(u, momentum, step);
  const tensor::KernelBytes bytes({u.values, u.gradients, momentum}, {u.values, u.copy, momentum});
  if (!is_stepped_by_us(u.values))
    return in_slices(u, {momentum}, [&](const FlatUpdate& part, const auto& s) { sgd_reference_(part, s[0], step); });
  run(u, u.values, if_defined(momentum), [&](const auto& table) {
    using W = WideOfTable<std::decay_t<decltype(table)>>;
    const SgdFactors<W> factors{static_cast<W>(step.weight_decay),
                                static_cast<W>(step.momentum),
                                static_cast<W>(step.intake),
                                static_cast<W>(step.nesterov ? 1 : 0),
                                static_cast<W>(step.nesterov ? step.momentum : 1),
                                static_cast<W>(step.learning_rate)};
    return [factors, kernel = table.sgd](const auto& part, int64_t n, auto... stream) {
      kernel(part, factors, n, stream...);
    };
  });
}

void adam_reference_(const FlatUpdate& u, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                     const AdamStep& step) {
  check_adam(u, exp_avg, exp_avg_sq, step);
  const at::NoGradGuard no_grad;
  const at::Tensor p = wide(u.values, u);
  const auto [m, v, ratio] = adam_moments(u, p, exp_avg, exp_avg_sq, step);
  const at::Tensor decayed = p * (1 - step.learning_rate * step.weight_decay);
  write(u, decayed - ratio * (step.learning_rate / AdamCorrections(step).first), {exp_avg, exp_avg_sq}, {m, v});
}

void adam_(const FlatUpdate& u, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const AdamStep& step) {
  check_adam(u, exp_avg, exp_avg_sq, step);
  const tensor::KernelBytes bytes({u.values, u.gradients, exp_avg, exp_avg_sq},
                                  {u.values, u.copy, exp_avg, exp_avg_sq});
  if (has_library_step(u, step)) {
    const at::NoGradGuard no_grad;
    const at::Tensor steps = at::full({}, step.step, u.values.options().dtype(at::kFloat));
    return in_slices(u, {exp_avg, exp_avg_sq},
                     [&](const FlatUpdate& part, const auto& s) { library_adam_(part, s[0], s[1], step, steps); });
  }
  if (!is_stepped_by_us(u.values))
    return in_slices(u, {exp_avg, exp_avg_sq},
                     [&](const FlatUpdate& part, const auto& s) { adam_reference_(part, s[0], s[1], step); });
  run(u, u.values, {exp_avg, exp_avg_sq}, [&](const auto& table) {
    return [factors = adam_factors<WideOfTable<std::decay_t<decltype(table)>>>(step), kernel = table.adam](
               const auto& part, int64_t n, auto... stream) { kernel(part, factors, n, stream...); };
  });
}

void adam_direction_reference_(const FlatUpdate& u, const at::Tensor& direction, const at::Tensor& exp_avg,
                               const at::Tensor& exp_avg_sq, const AdamStep& step) {
  check_direction(u, direction, exp_avg, exp_avg_sq, step);
  const at::NoGradGuard no_grad;
  const at::Tensor p = wide(u.values, u);
  const auto [m, v, ratio] = adam_moments(u, p, exp_avg, exp_avg_sq, step);
  write({direction, u.gradients}, ratio / AdamCorrections(step).first + step.weight_decay * p, {exp_avg, exp_avg_sq},
        {m, v});
}

void adam_direction_(const FlatUpdate& u, const at::Tensor& direction, const at::Tensor& exp_avg,
                     const at::Tensor& exp_avg_sq, const AdamStep& step) {
  check_direction(u, direction, exp_avg, exp_avg_sq, step);
  const tensor::KernelBytes bytes({u.values, u.gradients, exp_avg, exp_avg_sq}, {direction, exp_avg, exp_avg_sq});
  if (!is_stepped_by_us(u.values))
    return in_slices(u, {direction, exp_avg, exp_avg_sq}, [&](const FlatUpdate& part, const auto& s) {
      adam_direction_reference_(part, s[0], s[1], s[2], step);
    });
  run(u, direction, {exp_avg, exp_avg_sq}, [&](const auto& table) {
    using W = WideOfTable<std::decay_t<decltype(table)>>;
    AdamFactors<W> factors = adam_factors<W>(step);  // The kernel computes decay p - step_size ratio.
    factors.decay = static_cast<W>(step.weight_decay);
    factors.step_size = static_cast<W>(-1 / AdamCorrections(step).first);
    return [factors, kernel = table.adam](const auto& part, int64_t n, auto... stream) {
      kernel(part, factors, n, stream...);
    };
  });
}

void lion_reference_(const FlatUpdate& u, const at::Tensor& exp_avg, const LionStep& step) {
  check("lion", u, {exp_avg});
  const at::NoGradGuard no_grad;
  const at::Tensor p = wide(u.values, u), g = scaled_gradient(u), m = wide(exp_avg, u);
  const at::Tensor decayed = p * (1 - step.learning_rate * step.weight_decay);
  write(u, decayed - step.learning_rate * m.lerp(g, 1 - step.beta1).sign(), {exp_avg}, {m.lerp(g, 1 - step.beta2)});
}

void lion_(const FlatUpdate& u, const at::Tensor& exp_avg, const LionStep& step) {
  check("lion", u, {exp_avg});
  const tensor::KernelBytes bytes({u.values, u.gradients, exp_avg}, {u.values, u.copy, exp_avg});
  if (!is_stepped_by_us(u.values))
    return in_slices(u, {exp_avg}, [&](const FlatUpdate& part, const auto& s) { lion_reference_(part, s[0], step); });
  run(u, u.values, {exp_avg}, [&](const auto& table) {
    using W = WideOfTable<std::decay_t<decltype(table)>>;
    const LionFactors<W> factors{static_cast<W>(1 - step.learning_rate * step.weight_decay),
                                 static_cast<W>(1 - step.beta1), static_cast<W>(1 - step.beta2),
                                 static_cast<W>(step.learning_rate)};
    return [factors, kernel = table.lion](const auto& part, int64_t n, auto... stream) {
      kernel(part, factors, n, stream...);
    };
  });
}

void average_reference_(const at::Tensor& x, double scale, const at::Tensor& average, double mix) {
  const FlatUpdate u{x, x, {}, scale};
  check("average", u, {average});
  const at::NoGradGuard no_grad;
  const at::Tensor g = scaled_gradient(u), mean = wide(average, u).lerp(g, mix);
  write(u, g - mean, {average}, {mean});
}

void average_(const at::Tensor& x, double scale, const at::Tensor& average, double mix) {
  const FlatUpdate u{x, x, {}, scale};
  check("average", u, {average});
  const tensor::KernelBytes bytes({x, average}, {x, average});
  if (!is_stepped_by_us(x))
    return in_slices(u, {average},
                     [&](const FlatUpdate& part, const auto& s) { average_reference_(part.values, scale, s[0], mix); });
  run(u, x, {average}, [&](const auto& table) {
    using W = WideOfTable<std::decay_t<decltype(table)>>;
    return [mix = static_cast<W>(mix), kernel = table.average](const auto& part, int64_t n, auto... stream) {
      kernel(part, mix, n, stream...);
    };
  });
}

}  // namespace colossal::ops
