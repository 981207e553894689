// A ControlNet within a UNet (arXiv:2302.05543): each block of the UNet's first half also runs its layers on states of
// the ControlNet, whose first state has seen a control picture. Convolutions that start at 0 make residuals of these
// states, which the second half adds to the skips that it reads.
//
//   UnetControl control(shape, parts, model.states, layers);      // adds its states
//   model.blocks.push_back(control.joined(i, make_unet_layer(shape, parts[i], "blocks.3", layers), layers));
//
// Parameters are named "control.<layer>" before the blocks and "blocks.<i>.control.<layer>" inside of them, so that
// both halves of a pair are on one stage of a pipeline and are split alike. They count as added
// (nn::Parameter::is_added).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/unet_blocks.h"
#include "colossal/models/unet_parts.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// The ControlNet of one UNet, while its model is made. `shape` has an OwnControl.
class UnetControl {
 public:
  /// Adds the states of the ControlNet to `states`, those of the UNet, and makes the layers before the blocks.
  UnetControl(const ModelShape& shape, const std::vector<UnetPart>& parts, std::vector<State>& states,
              nn::Layers& make);

  /// Returns the states that embed() writes.
  std::vector<int> embedded() const { return {states_.hidden, states_.condition}; }
  /// Writes the first states of the ControlNet. Copies of it share its layers, so that a model may keep one.
  /// Errors ("data"): control pictures whose sides are not those of `noised` once each layer with a stride has halved
  /// them, rounded up.
  void embed(States& states, const tensor::Batch& batch, const nn::ForwardContext& step) const;
  /// Returns the block of that part: the UNet's layer, with the ControlNet's beside it in the first half, and with the
  /// residuals in front of it in the second half.
  Block joined(size_t index, UnetLayer own, nn::Layers& make) const;

 private:
  /// Indices of states: what its blocks pass on, the vector of the time, what layers of one transformer pass on, the
  /// first residual of a skip, and the residual of the middle.
  struct Indices {
    int hidden = 0, condition = 0, inside = -1, skips = 0, middle = 0;
  };
  struct Embedding;

  Block in_first_half(size_t index, UnetLayer own, nn::Layers& make) const;
  Block in_second_half(size_t index, UnetLayer own) const;
  /// Returns the states as a layer of the UNet's kind finds them, of those of the ControlNet.
  States seen(const States& states, const UnetPart& part) const;
  void add_states(std::vector<State>& states);

  ModelShape shape_;
  std::vector<UnetPart> parts_;
  Indices states_;
  size_t second_half_;  // first part of it
  std::shared_ptr<const Embedding> embedding_;
};

/// Returns the index of the first part that reads a skip.
size_t unet_second_half(const std::vector<UnetPart>& parts);

/// Returns true if a part makes a skip.
bool makes_skip(const UnetPart& part);

}  // namespace colossal::models
