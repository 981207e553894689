// The parity driver: it compares a model on one process with the same model on a mesh of thread ranks.
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

/// A model, its layout and the training steps of one comparison.
struct ParityCase {
  models::ModelShape shape;
  int data = 1;
  int expert = 1;
  bool splits_experts = false;  ///< parallel.expert.tensor = "split"
  int64_t expert_node = 0;      ///< parallel.expert.node
  parallel::TensorConfig tensor;
  parallel::SequenceConfig sequences;
  parallel::PipelineConfig pipeline;
  int64_t batch = 4, sequence = 6, accumulate = 1, steps = 10;
  int64_t first_document = 0;  ///< tokens of the first of the two documents of each row; 0 = half of the row
  double clip = 0;             ///< maximum gradient norm; 0 = no clipping
  int64_t zero = 0, zero_group = 0;
  bool reshard_after_forward = true;
  std::string recompute = "none";  ///< recompute mode of the ranks; the reference keeps all activations
  std::string disk;                ///< folder in which the ranks keep what `host` does not hold; "" = no tiers
  int64_t host = 0;                ///< bytes of each rank in host memory; 0 = no tiers
  /// If true, collectives do nothing. Messages between stages still arrive, because a pipeline could not run otherwise.
  bool collectives_off = false;
  int lost_transfer = -1;  ///< message from rank 0 to another stage, counted from 0, that zeros replace; -1 = none
  bool bitwise = false;    ///< true = losses, gradients and weights must be bitwise equal to those of one process
  /// Returns the device of a rank: "cpu", "cuda" or "trap", one per rank. The reference always runs on the CPU.
  at::Device (*device)(int local_rank) = nullptr;  ///< null = the CPU
};

/// Tiny shapes. Some of their sizes are divisible by the sizes of the layouts, and some are not.
models::ModelShape tiny_gpt2();
models::ModelShape tiny_llama();
/// A DeepSeek-V3 with latents of queries, a dense block and a mixture block with groups and balance biases.
models::ModelShape tiny_deepseek();
/// A T5 v1.0 (`is_first`) or v1.1 with two encoder blocks, three decoder blocks and three heads. Four tokens of a row
/// belong to the source.
models::ModelShape tiny_t5(bool is_first = true);
models::ModelShape tiny_vit();
/// A tiny_vit() with a distillation token.
models::ModelShape tiny_deit();
/// A DiT with a learned variance, for pictures of 2 x 4 patches. Cases of it compare its prediction with given targets
/// (support/noised_pictures.h).
models::ModelShape tiny_dit();
/// A UNet of two levels for pictures of 4 x 6, whose sides halve to an odd one, with `groups` of its norms. Only its
/// first level attends. Groups of joined features straddle their border.
models::ModelShape tiny_unet(int64_t groups = 4);
/// A Stable Diffusion 3 and a FLUX of two blocks, for pictures of 2 x 4 patches and captions of `words`.
models::ModelShape tiny_sd3(int64_t words = 5);
models::ModelShape tiny_flux(int64_t words = 5);
/// An Open-Sora 2 of two blocks, for clips of 3 frames of 3 x 5 cells, whose last patches are padded.
models::ModelShape tiny_open_sora(int64_t words = 5);
/// An STDiT3 for clips of 3 frames of 3 x 5 cells, whose last patches are padded.
models::ModelShape tiny_stdit();
models::ModelShape tiny_bert(const std::string& objective = "masked-token");
/// An ESM-2 of so few tokens that most rows have mask tokens.
models::ModelShape tiny_esm2();

/// A LLaMA with linear biases in place of rotary positions, a window of 9 tokens and capped scores.
models::ModelShape tiny_biased();

/// A decoder of three blocks, each of another variant (models/transformer_block.h), with all options of embedding and
/// head.
models::ModelShape tiny_mixed();
/// A decoder of three further variants. Its embedding is narrower than its hidden states, and it has no norm before the
/// head.
models::ModelShape tiny_projected();

/// Returns the global batch of a step of check_parity().
tensor::Batch random_batch(const ParityCase& c, int64_t step);

/// Returns a batch of ones for a model of `shape`, with one document per row. It is for tests that check sizes and
/// calls, but no values.
tensor::Batch batch_of_ones(const models::ModelShape& shape, int64_t rows, int64_t sequence);

/// Returns every mode of tensor parallelism in sizes that fit a test: q = 2, 3; depth 1, 2, 3; l = 2, 3; sequences of
/// 6.
std::vector<parallel::TensorConfig> tensor_modes();
/// Returns every mode of sequence parallelism on the smallest number of ranks that uses all of the mode: two ranks, and
/// two pairs for usp.
std::vector<parallel::SequenceConfig> sequence_modes();
/// Returns a name for tests: "size8_2_5d_depth2".
std::string name_of(const parallel::TensorConfig& config);

/// Runs `c.steps` training steps in fp64 on one process, and on the ranks of c.pipeline, c.data, c.sequences and
/// c.tensor, and compares them on every rank. It compares:
///   - the loss and the gradient norm of each step;
///   - every parameter gradient of the first step (the rank's blocks of the full gradient);
///   - every parameter after the last step;
///   - the gradient of the embedded input in one backward pass (without a pipeline).
/// The one process accumulates the micro-batches of a pipeline. Throws a ParityError at the first difference.
void check_parity(const ParityCase& c);

/// Returns the blocks of the logical tensor `whole` that `spec` assigns to `coordinates`, in the layout of the local
/// tensor. Padding is zero.
at::Tensor local_part(const at::Tensor& whole, const tensor::ShardSpec& spec,
                      const tensor::MeshCoordinates& coordinates);
/// Returns the elements of `whole` that `tensor` holds at `coordinates`: the local tensor, or a part of it.
at::Tensor local_part(const at::Tensor& whole, const checkpoint::NamedTensor& tensor,
                      const tensor::MeshCoordinates& coordinates);
/// Copies the elements that `tensor` holds to the logical tensor `whole`, which is created as zeros if it is undefined.
/// The rank must hold all of the tensor or a flat part of it.
void put_part(at::Tensor& whole, const checkpoint::NamedTensor& tensor);

}  // namespace colossal::test
