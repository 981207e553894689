// A scope in which sharded or offloaded parameters are whole, for code that reads memory by address.
//
//   train::Gathered whole = training->gathered({{weight}});    // every rank, with the same parameters
//   my_kernel(weight.const_data_ptr<float>());
//   whole.end();                                               // keeps what was written
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "colossal/nn/parameter.h"

namespace colossal::memory {
class ChunkStore;
}

namespace colossal::train {

/// Made by ModuleTraining::gathered(). While it exists, the parameters are whole on every rank, data_ptr() of them is
/// valid, and operators read them without communication. An address is valid until the scope ends.
///
/// What is written by address is kept, and must be the same on all ranks. The scope may be inside of a pass (in
/// forward), and inside of another scope.
/// ModuleTraining::step(), load() and resume() must be called outside. If the training is destroyed first, the scope
/// ends with it.
class Gathered {
 public:
  Gathered(Gathered&&) noexcept;
  Gathered& operator=(Gathered&&) = delete;
  /// Ends the scope if end() was not called. What was written by address to sharded or offloaded parameters is lost.
  ~Gathered();

  /// Ends the scope: parameters that are sharded or offloaded are released. A second call does nothing.
  /// Cost: on the host one read of the values; from an accelerator a copy to the host, one parameter at a time. The
  ///       beginning of the scope costs the same. Communication: with sharded or offloaded parameters an all_reduce of
  ///       16 bytes among all ranks.
  /// Errors ("training"), the same on all ranks, after the scope has ended: ranks wrote different values to sharded or
  /// offloaded parameters. None of these is kept.
  void end();

 private:
  friend class ModuleTraining;
  struct Scope;
  /// `training`: expires with the training and counts the open scopes.
  Gathered(std::vector<const nn::Parameter*> parameters, memory::ChunkStore& store,
           const std::shared_ptr<int>& training);
  /// Remembers the values of sharded or offloaded parameters, with which end() compares.
  void begin_check();

  std::unique_ptr<Scope> scope_;
};

}  // namespace colossal::train
