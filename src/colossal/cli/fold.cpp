#include "colossal/fold/fold.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/article.h"
#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/fold_records.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/fold/alignment_input.h"
#include "colossal/fold/fold_input.h"
#include "colossal/fold/folded_files.h"
#include "colossal/fold/folder.h"
#include "colossal/fold/pass_bytes.h"
#include "colossal/fold/source_keys.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/run/model_source.h"

namespace colossal::cli {
namespace {

struct FoldRequest {
  ModelOptions model;
  std::vector<std::string> from;
  std::string sequence, input, to, pae, tensors, templates;
  std::vector<std::string> msa;
  fold::FoldOptions options;
  std::optional<int64_t> clusters, extra;
  std::optional<double> masked;
  bool as_json = false, resumes = false;
};

/// A model of the command, before its weights are read.
struct FoldModel {
  run::ModelSource source;
  std::vector<fold::FoldInput> inputs;  ///< of each record
  int64_t passes = 0;                   ///< at most, without --passes
};

/// The work of a command, the same on all ranks.
struct FoldWork {
  std::vector<FoldRecord> records;
  std::vector<FoldModel> models;
  int64_t finished = 0;  ///< records of --resume that are left out
};

ModelOptions options_from(const FoldRequest& r, const std::string& from) {
  ModelOptions options = r.model;
  options.from = from;
  return options;
}

run::Loading loading_from(const FoldRequest& r, const std::string& from) {
  run::Loading loading = options_from(r, from).loading();
  loading.tokenizer = "none";
  return loading;
}

void require_no_half(at::ScalarType dtype) {
  require(dtype != at::kHalf, "fold",
          "precision must be bf16, fp32 or fp64: got fp16, whose range positions and "
          "products of pairs exceed; set --precision bf16");
}

at::ScalarType dtype_of(const FoldRequest& r, const run::ModelSource& source) {
  const auto given = loading_from(r, source.path).dtype;
  return given.value_or(source.dtype);
}

/// Returns the rows that flags name, or else `rows`.
fold::AlignmentRows rows_of(const FoldRequest& r, const fold::AlignmentRows& rows) {
  return {.clusters = r.clusters.value_or(rows.clusters),
          .extra = r.extra.value_or(rows.extra),
          .masked = r.masked.value_or(rows.masked)};
}

/// Finds a model and its inputs. `all`: the records of the command, also finished ones, whose files of alignments are
/// not those of another record.
FoldModel find_model(const FoldRequest& r, const std::string& from, const std::vector<FoldRecord>& records,
                     const std::vector<FoldRecord>& all, const run::Program& program) {
  FoldModel model{.source = run::find_source(from, program)};
  model.source.path = from;
  const models::ModelShape& shape = model.source.shape;
  const models::FoldingSizes sizes = models::folding_of(shape);
  const fold::SourceKeys keys = fold::keys_of_source(from, program);
  const fold::AlignmentRows rows = rows_of(r, keys.rows);
  model.passes = keys.passes.value_or(sizes.passes);
  require(sizes.reads_alignments || r.msa.empty(), "fold", "--msa must be for a model that reads alignments: got ",
          from, ", which holds ", with_article(shape.architecture->name),
          " and reads sequences alone; leave --msa out");
  require(sizes.reads_alignments || !(r.clusters || r.extra || r.masked), "fold",
          "--clusters, --extra and --masked must be for a model that reads alignments: got ", from, ", which holds ",
          with_article(shape.architecture->name), "; leave them out");
  require(sizes.templates > 0 || r.templates.empty(), "fold",
          "--templates must be for a model that reads templates: got ", from, ", which holds ",
          with_article(shape.architecture->name), " and reads none; leave --templates out");
  for (const FoldRecord& record : records) {
    fold::check_sequence(record.sequence, shape, record.place);
    if (has_ending(r.input, ".safetensors")) {
      model.inputs.push_back(fold::feature_input(r.input, shape));
    } else if (sizes.reads_alignments) {
      const std::string place = record.place.substr(0, record.place.size() - 2);
      const fold::AlignmentFiles files{alignments_of_record(r.msa, record, all), r.templates, place};
      model.inputs.push_back(fold::alignment_input(record.sequence, files, shape, rows));
    } else {
      model.inputs.push_back(fold::sequence_input(record.sequence, shape));
    }
    distributed::check_residues(r.model.layout.sequence.size, model.inputs.back().sizes.residues);
  }
  return model;
}

/// Says what each chain needs, and which residues get no atoms.
void say_needs(const FoldRequest& r, const FoldWork& work) {
  if (work.finished > 0)
    say(concat(work.finished, work.finished == 1 ? " record has its" : " records have their",
               " files already, left out (--resume)"));
  for (const FoldRecord& record : work.records)
    if (const std::string notice = notice_of_unknown(record.sequence); !notice.empty()) say(notice);
  for (const FoldModel& model : work.models) {
    const fold::PassShapes shapes(model.source.shape, dtype_of(r, model.source));
    for (const fold::FoldInput& input : model.inputs) {
      for (const std::string& notice : input.notices) say(notice);
      say(concat(input.sequence.name, work.models.size() > 1 ? concat(" (", model.source.path, ")") : "", ": ",
                 input.kept.size(), " residues; a pass needs ", readable_bytes(shapes.bytes(input.sizes)),
                 r.model.layout.ranks() > 1 ? " of one process" : "",
                 " beside the weights, of which a pair representation takes ",
                 readable_bytes(shapes.pair_bytes(input.sizes)), "; no chunks"));
    }
  }
}

void say_pass(const std::string& name, const fold::FoldedPass& pass, int64_t passes) {
  say(concat(name, ": pass ", pass.pass, " of ", passes, ": pLDDT ", fixed_text(pass.plddt, 2),
             pass.pass > 1 ? concat(", CA distances changed by ", fixed_text(pass.change, 2), " A") : ""));
}

/// Writes the results of a record, the best model first.
void put_results(const FoldRequest& r, const FoldFiles& files, const std::vector<fold::Folded>& results) {
  const std::vector<size_t> order = ranked(results);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const fold::Folded& folded = results[order[rank]];
    const std::string path = files.write(folded, rank);
    if (!r.as_json) {
      std::printf("%s\n", path.c_str());
      continue;
    }
    nlohmann::ordered_json line = fold::summary_of(folded);
    if (order.size() > 1) line["rank"] = rank + 1, line["model"] = r.from[order[rank]];
    std::puts(json_line(line).c_str());
  }
  std::fflush(stdout);
}

/// A loaded model with what folds with it.
struct LoadedFolder {
  run::SavedModel saved;
  std::unique_ptr<fold::Folder> folder;
};

int fold_as_rank(const FoldRequest& r, const FoldFiles& files, const FoldWork& work, const run::Program& program) {
  const auto world = join_layout(r.model);
  comm::Mesh mesh(*world, r.model.layout.axes());
  const bool speaks = world->rank() == 0;
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (!speaks) return;
    say_needs(r, work);
    files.make_folders();
  });
  std::vector<LoadedFolder> loaded;
  for (const FoldModel& model : work.models) {
    const std::string& from = model.source.path;
    LoadedFolder& own = loaded.emplace_back();
    own.saved = run::load_model(from, mesh, r.model.layout, comm::choose_device(r.model.device, world->local_rank()),
                                loading_from(r, from), program);
    if (speaks) print_notices(own.saved);
    own.folder = std::make_unique<fold::Folder>(*own.saved.model, mesh);
  }
  fold::FoldOptions options = r.options;
  options.keeps_errors = !r.pae.empty();
  for (size_t record = 0; record < work.records.size(); ++record) {
    std::vector<fold::Folded> results;
    for (size_t i = 0; i < loaded.size(); ++i) {
      const fold::FoldInput& input = work.models[i].inputs[record];
      const int64_t passes = r.options.passes.value_or(work.models[i].passes);
      options.passes = passes;
      results.push_back(loaded[i].folder->fold(input, options, [&](const fold::FoldedPass& pass) {
        if (speaks) say_pass(input.sequence.name, pass, passes);
      }));
    }
    comm::agree(mesh.all(), at::kCPU, [&] {
      if (speaks) put_results(r, files, results);
    });
  }
  return 0;
}

void add_fold_options(CLI::App& app, FoldRequest& r) {
  add_model_options(app, r.model, parallel::all_sequence_mode_names());
  app.remove_option(app.get_option("--from"));
  app.add_option("--from", r.from,
                 "run folder or folder of transformers with a folding model; repeated, each model folds each record")
      ->required()
      ->expected(1)
      ->take_all();
  app.add_option("--sequence", r.sequence, "letters of a chain; `:` joins the chains of a complex");
  app.add_option(
      "--input", r.input,
      "FASTA file with a record for each chain or complex, perhaps packed with gzip, or a .safetensors file that "
      "`colossal features` wrote");
  app.add_option("--msa", r.msa,
                 "A3M or Stockholm file with related sequences, for a model that reads alignments; repeatable. Of "
                 "several records a folder, whose files begin with their names")
      ->expected(1)
      ->take_all();
  app.add_option("--templates", r.templates, "folder of structures, for a model that reads templates");
  app.add_option("--clusters,--folding.clusters", r.clusters,
                 "rows of the clustered alignment with the query; default: the run's, or 512")
      ->check(CLI::PositiveNumber);
  app.add_option("--extra,--folding.extra", r.extra,
                 "further rows, of which models 1, 3 and 4 of AlphaFold read 5120; default: the run's, or 1024")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--masked,--folding.masked", r.masked,
                 "share of the letters of an alignment that are masked; default: the run's, or 0.15")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--to", r.to, "a .cif or .pdb file for one record, or a folder, which is made and gets NAME.cif")
      ->required();
  app.add_option("--pae", r.pae, "JSON file, or if --to is a folder a folder, for the predicted aligned errors");
  app.add_option("--tensors", r.tensors,
                 "safetensors file, or if --to is a folder a folder, for positions, masks and pLDDT of all atoms");
  app.add_option("--passes,--folding.passes", r.options.passes,
                 "how often the model runs on a chain (recycling); default: as it was trained to");
  app.add_option("--tolerance", r.options.tolerance,
                 "stop after a pass that changes CA distances by less on average, in Angstrom; 0 = off")
      ->capture_default_str();
  app.add_option("--seed", r.options.seed, "seed of the rows and masks that a model of alignments draws")
      ->capture_default_str();
  app.add_flag("--resume", r.resumes, "leave out records whose files are there");
  app.add_flag("--json", r.as_json, "print a line of JSON for each chain");
}

void check_fold_flags(const CLI::App& app, const FoldRequest& r) {
  if (app.count("--sequence") + app.count("--input") != 1 || (app.count("--input") > 0 && r.input.empty()))
    throw UsageError("colossal fold: name what to fold with either --sequence or --input");
  refuse_options(app, {"--tokenizer"}, "with a model that folds, which reads residues");
  if (has_ending(r.input, ".safetensors"))
    refuse_options(app, {"--msa", "--templates", "--clusters", "--extra", "--masked"},
                   "with a file of features, which has the rows and templates");
  r.options.check();
  if (!r.model.precision.mode.empty()) require_no_half(r.model.precision.dtype());
}

}  // namespace

int fold(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Folds proteins: writes the places of the atoms of each chain as mmCIF or PDB.", "colossal fold");
  FoldRequest r;
  add_fold_options(app, r);
  parse(app, arguments);
  check_fold_flags(app, r);
  const FoldFiles files(r.to, r.pae, r.tensors, r.from.size());
  FoldWork work;
  const std::vector<FoldRecord> all = read_fold_records(r.sequence, r.input, r.to);
  work.records = all;
  files.check(work.records);
  for (const std::string& from : r.from) check_model_options(app, options_from(r, from));
  if (r.resumes)
    work.finished = static_cast<int64_t>(
        std::erase_if(work.records, [&](const FoldRecord& record) { return files.are_there(record.sequence); }));
  const run::Program known = program ? *program : run::built_in();
  for (const std::string& from : r.from) {
    work.models.push_back(find_model(r, from, work.records, all, known));
    const run::ModelSource& source = work.models.back().source;
    require_no_half(dtype_of(r, source));
    require(r.pae.empty() || fold::PassShapes(source.shape, at::kFloat).predicts_errors(), "fold",
            "--pae must be for a model that predicts errors of aligned points: got ", from,
            ", which has no such head; leave --pae out");
  }
  if (work.records.empty()) {
    say("all records have their files already (--resume)");
    return 0;
  }
  return with_ranks(r.model.layout.ranks(), "fold", arguments, [&] { return fold_as_rank(r, files, work, known); });
}

}  // namespace colossal::cli
