// Products with the weight of a frozen layer that is stored in another form than its values (nn/frozen_form.h).
//
//   adapter.product = [form_of](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
//     product = nn::with_frozen_form(product, weight, parameters, form_of(weight));            // NF4
//     return nn::with_low_rank(product, weight, parameters, {.rank = 4});                     // QLoRA
//   };
#pragma once
#include <memory>

#include "colossal/nn/frozen_form.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::nn {

/// Stores the weight as `form` (Parameters::store_as()), and returns a wrapper of `product` that reads it. Use it in
/// Parameters::Options::products, inside of with_low_rank(). Of a matrix of a stack (Parameter::stack) it stores the
/// whole stack; call it for all matrices of the stack.
///
/// Numbers:       a DirectProduct multiplies decoded slices. A product that gathers blocks (2D, 2.5D, 3D, Megatron's
///                sequence form) is given this rank's decoded block. Backward decodes again.
/// Communication: only `product` communicates.
/// Memory:        around a product that gathers blocks this rank's block during a pass, and what that product keeps.
/// Inside:        `product` multiplies with the matrix that it is given. The product of fp8 would not be used.
/// Errors ("model"): those of Parameters::store_as(). ("adapter"): an adapter inside.
std::shared_ptr<const Product> with_frozen_form(std::shared_ptr<const Product> product, const Parameter& weight,
                                                Parameters& parameters, std::shared_ptr<const FrozenForm> form);

/// Returns a wrapper of `product` that reads the weight as it is stored: `product` itself if it has no form. For a
/// second product of a weight that with_frozen_form() was called for.
std::shared_ptr<const Product> reads_frozen_form(std::shared_ptr<const Product> product, const Parameter& weight,
                                                 const Parameters& parameters);

/// Returns the values of the weight that `product` was given, this rank's block [rows, in]: decoded if the product is
/// one of with_frozen_form() and `weight` is in its form; else `weight` itself.
at::Tensor weight_values(const Product& product, const at::Tensor& weight);

}  // namespace colossal::nn
