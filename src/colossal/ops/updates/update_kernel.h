// Bodies of the update rules: one loop over memory, a functor for each rule. See update.h for the formulas.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

// A rule takes values, gradients and its kStates states. It changes the states and returns the new values.

template <class W>
struct PlainSgd {
  static constexpr int kStates = 0;
  SgdFactors<W> f;
  COLOSSAL_DEVICE Vec<W> operator()(Vec<W> p, Vec<W> g, Vec<W>*) const {
    return p - f.step_size * (f.intake * (g + f.penalty * p));
  }
};

template <class W>
struct MomentumSgd {
  static constexpr int kStates = 1;
  SgdFactors<W> f;
  COLOSSAL_DEVICE Vec<W> operator()(Vec<W> p, Vec<W> g, Vec<W>* state) const {
    g = f.intake * (g + f.penalty * p);
    state[0] = state[0] * f.momentum + g;
    return p - f.step_size * (g * f.from_gradient + state[0] * f.from_momentum);
  }
};

template <class W>
struct AdamRule {
  static constexpr int kStates = 2;
  AdamFactors<W> f;
  COLOSSAL_DEVICE Vec<W> operator()(Vec<W> p, Vec<W> g, Vec<W>* state) const {
    g += f.penalty * p;
    state[0] += (g - state[0]) * f.mix1;
    state[1] = state[1] * f.beta2 + g * g * f.mix2;
    const Vec<W> denominator = root_of(state[1]) * f.inverse_correction2_root + f.epsilon;
    return p * f.decay - f.step_size * (state[0] / denominator);
  }
};

template <class W>
struct LionRule {
  static constexpr int kStates = 1;
  LionFactors<W> f;
  COLOSSAL_DEVICE Vec<W> operator()(Vec<W> p, Vec<W> g, Vec<W>* state) const {
    const Vec<W> zero{}, one = splat<W>(1), direction = state[0] + (g - state[0]) * f.direction_mix;
    // 0 and NaN stay as they are
    const Vec<W> sign = select(direction > zero, one, select(direction < zero, -one, direction));
    state[0] += (g - state[0]) * f.state_mix;
    return p * f.decay - f.step_size * sign;
  }
};

template <class W>
struct AverageRule {
  static constexpr int kStates = 1;
  W mix;
  COLOSSAL_DEVICE Vec<W> operator()(Vec<W>, Vec<W> g, Vec<W>* state) const {
    state[0] += (g - state[0]) * mix;
    return g - state[0];
  }
};

// Arguments are copies, because stores through pointers might alias members of a reference.
template <class T, class G, class Rule>
COLOSSAL_DEVICE void update(UpdateBuffers<T> u, const G* gradients, Rule rule, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) {
    Vec<W> state[Rule::kStates + 1];
    for (int s = 0; s < Rule::kStates; ++s) state[s] = load(u.states[s] + i, part);
    Vec<W> p = rule(load(u.values + i, part), load(gradients + i, part) * u.gradient_scale, state);
    if constexpr (std::is_same_v<T, Bf16>)
      if (u.words.wanted) {
        const Words word = load_words(u.words, i, part);
        p = rounded_by_chance(p, word);
        if constexpr (Rule::kStates > 0)
          state[Rule::kStates - 1] = rounded_by_chance(state[Rule::kStates - 1], word >> 16);
      }
    store(u.out + i, p, part);
    for (int s = 0; s < Rule::kStates; ++s) store(u.states[s] + i, state[s], part);
    if constexpr (!std::is_same_v<T, double>) {
      if (u.copy_type == Narrow::Bf16) store(static_cast<Bf16*>(u.copy) + i, p, part);
      if (u.copy_type == Narrow::Half) store(static_cast<Half*>(u.copy) + i, p, part);
    }
  });
}

template <class T, class Rule>
COLOSSAL_DEVICE void update(const UpdateBuffers<T>& u, const Rule& rule, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (u.gradient_type == Narrow::Bf16) return update(u, static_cast<const Bf16*>(u.gradients), rule, n);
    if (u.gradient_type == Narrow::Half) return update(u, static_cast<const Half*>(u.gradients), rule, n);
  }
  update(u, static_cast<const T*>(u.gradients), rule, n);
}

/// Returns the buffers from element i on.
template <class T>
COLOSSAL_DEVICE UpdateBuffers<T> part_of(UpdateBuffers<T> u, int64_t i) {
  const int64_t gradient_size = u.gradient_type == Narrow::None ? sizeof(T) : 2;
  u.values += i;
  u.out += i;
  for (T*& state : u.states)
    if (state) state += i;
  u.gradients = static_cast<const char*>(u.gradients) + i * gradient_size;
  if (u.copy) u.copy = static_cast<char*>(u.copy) + 2 * i;
  if (u.words.drawn) u.words.drawn += i;
  u.words.first += static_cast<uint64_t>(i);
  return u;
}

template <class T>
COLOSSAL_DEVICE void sgd_step(const UpdateBuffers<T>& u, const SgdFactors<WideOf<T>>& f, int64_t n) {
  using W = WideOf<T>;
  u.states[0] ? update(u, MomentumSgd<W>{f}, n) : update(u, PlainSgd<W>{f}, n);
}
template <class T>
COLOSSAL_DEVICE void adam_step(const UpdateBuffers<T>& u, const AdamFactors<WideOf<T>>& f, int64_t n) {
  update(u, AdamRule<WideOf<T>>{f}, n);
}
template <class T>
COLOSSAL_DEVICE void lion_step(const UpdateBuffers<T>& u, const LionFactors<WideOf<T>>& f, int64_t n) {
  update(u, LionRule<WideOf<T>>{f}, n);
}
template <class T>
COLOSSAL_DEVICE void average_step(const UpdateBuffers<T>& u, WideOf<T> mix, int64_t n) {
  update(u, AverageRule<WideOf<T>>{mix}, n);
}

}  // namespace
}  // namespace colossal::ops
