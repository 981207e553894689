// The one parity driver: a model on one process against the same model on a mesh of thread ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/shape.h"
#include "colossal/parallel/pipeline/plan.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/tensor/batch.h"

namespace colossal::test {

struct ParityCase {
  models::ModelShape shape;
  int data = 1;
  parallel::TensorConfig tensor;
  parallel::SequenceConfig sequences;
  parallel::PipelineConfig pipeline;
  int64_t batch = 4, sequence = 6, accumulate = 1, steps = 10;
  int64_t first_document = 0;  ///< tokens of the first of the two documents of each row; 0: half of them
  double clip = 0;             ///< 0: none
  int64_t zero = 0, zero_sharers = 0;
  bool reshard_after_forward = true;
  std::string recompute = "none";  ///< of the ranks; the reference keeps all
  /// What stages send one another arrives nevertheless, or a pipeline would not run at all
  bool collectives_off = false;
  int lost_transfer = -1;  ///< zeros arrive in place of that message from rank 0 to another stage, counted from 0
  bool bitwise = false;    ///< losses, gradients and weights must be those of one process to the last bit
  /// Of the ranks: "cpu", "cuda", or "trap", of which each has its own. The reference is always computed on the CPU
  at::Device (*device)(int local_rank) = nullptr;  ///< null: the CPU
};

/// Tiny shapes that exercise what divides and what does not.
models::ModelShape tiny_gpt2();
models::ModelShape tiny_llama();
/// Two blocks of an encoder and three of a decoder, of three heads; of v1.0 or of v1.1. Four tokens are the source's.
models::ModelShape tiny_t5(bool is_first = true);
models::ModelShape tiny_vit();
/// The same with a distillation token.
models::ModelShape tiny_deit();
models::ModelShape tiny_bert(const std::string& objective = "masked-token");

/// A LLaMA with linear biases in place of rotary positions, a window of 9 tokens and capped scores.
models::ModelShape tiny_biased();

/// Of three blocks, each of another variant (models/transformer_block.h), in a decoder with all that goes around them.
models::ModelShape tiny_mixed();
/// Of three others, in a decoder whose embedding is narrower than its hidden states and that has no norm in front of
/// the head.
models::ModelShape tiny_projected();

/// The whole batch of a step of check_parity().
tensor::Batch random_batch(const ParityCase& c, int64_t step);

/// What a model of `shape` reads, all ones: where sizes and calls are looked at, and no numbers. One document a row.
tensor::Batch batch_of_ones(const models::ModelShape& shape, int64_t rows, int64_t sequence);

/// Every mode of tensor parallelism in sizes that fit a test: q = 2, 3; depth 1, 2, 3; l = 2, 3; sequences of 6.
std::vector<parallel::TensorConfig> tensor_modes();
/// Every mode of sequence parallelism on as few ranks as leave nothing of it out: two, for usp two pairs.
std::vector<parallel::SequenceConfig> sequence_modes();
/// For names of tests: "size8_2_5d_depth2".
std::string name_of(const parallel::TensorConfig& config);

/// Runs `c.steps` training steps in fp64 on one process and on the ranks of c.pipeline, c.data, c.sequences and
/// c.tensor and compares, on every rank: the loss of each step, every parameter gradient of the first step (the rank's
/// blocks of the full one), the gradient norm, and every parameter after the last step; and of one backward pass the
/// gradient of the embedded input (without a pipeline). One process accumulates the micro-batches of a pipeline. Throws
/// ParityError on the first difference.
void check_parity(const ParityCase& c);

/// Blocks of the logical tensor `whole` that `spec` gives `place`, laid out as the local tensor (zeros in padding).
at::Tensor local_part(const at::Tensor& whole, const tensor::ShardSpec& spec, const tensor::Place& place);
/// What `tensor` holds of it at `place`: the local tensor, or a part of that.
at::Tensor local_part(const at::Tensor& whole, const checkpoint::NamedTensor& tensor, const tensor::Place& place);
/// The logical tensor `whole`, zeros if there is none yet, gets what a rank that has all of it holds of it in `tensor`.
void put_part(at::Tensor& whole, const checkpoint::NamedTensor& tensor);

}  // namespace colossal::test
