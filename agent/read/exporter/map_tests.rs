//! What the tables make of each exporter's lines, as the facts and the exporters' docs have them.

use gpufleet_telemetry::catalog;

use super::super::holder::Pod;
use super::super::table;
use super::super::text::parse;
use super::*;

const UUID: &str = "GPU-5f2c0001-1111-2222-3333-444455556666";

fn mapper() -> Mapper {
    Mapper::new(table::shipped().into(), "node-1", "127.0.0.1:9400")
}

fn map(text: &str) -> Mapped {
    let body = parse(text);
    assert_eq!(body.refused, 0, "{:?}", body.refusals);
    mapper().map(&body.series)
}

/// `id metric = value`, one line per sample.
fn lines(mapped: &Mapped) -> Vec<String> {
    let mut lines = Vec::new();
    for one in &mapped.resources {
        for sample in &one.samples {
            let metric = catalog::by_id(sample.metric).expect("a known metric");
            let value = match sample.reading {
                Ok(value) => format!("{value}"),
                Err(missing) => missing.name().to_owned(),
            };
            lines.push(format!("{} {} = {value}", one.resource.id, metric.name));
        }
    }
    lines
}

#[test]
fn dcgm_exporters_dialect_a_is_read_in_base_units() {
    let labels = format!(
        r#"gpu="0",UUID="{UUID}",pci_bus_id="00000000:04:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="other",DCGM_FI_DRIVER_VERSION="580.1""#
    );
    let mapped = map(&format!(
        "DCGM_FI_DEV_GPU_UTIL{{{labels}}} 97\nDCGM_FI_DEV_FB_USED{{{labels}}} 1024\n\
         DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} 5000\nDCGM_FI_DEV_MEMORY_TEMP{{{labels}}} 2147483632\n\
         DCGM_FI_DEV_SM_CLOCK{{{labels}}} 1980\nDCGM_FI_PROF_SM_ACTIVE{{{labels}}} 1.0002\n\
         DCGM_FI_DEV_POWER_USAGE{{{labels}}} NaN\nDCGM_FI_DEV_MEM_COPY_UTIL{{{labels}}} 300\n"
    ));
    let expected = [
        "gpufleet_gpu_utilization_ratio = 0.97",
        "gpufleet_gpu_memory_copy_utilization_ratio = invalid",
        "gpufleet_gpu_memory_used_bytes = 1073741824",
        "gpufleet_gpu_power_watts = invalid",
        "gpufleet_gpu_energy_joules_total = 5",
        "gpufleet_gpu_memory_temperature_celsius = not_supported",
        "gpufleet_gpu_sm_clock_hertz = 1980000000",
        "gpufleet_gpu_sm_active_ratio = 1",
    ];
    assert_eq!(
        lines(&mapped),
        expected.map(|line| format!("{UUID} {line}"))
    );
    let resource = &mapped.resources[0].resource;
    for (name, value) in [
        (attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3"),
        (attribute::PCI_ADDRESS, "00000000:04:00.0"),
        (attribute::GPU_INDEX, "0"),
        (attribute::DRIVER_VERSION, "580.1"),
    ] {
        assert_eq!(resource.attribute(name), Some(value), "{name}");
    }
}

#[test]
fn the_names_of_4_9_and_the_lower_case_hostname_are_read_too() {
    let mapped = map(&format!(
        "DCGM_FI_DEV_GPU_UTIL_RATIO{{gpu=\"0\",UUID=\"{UUID}\",hostname=\"n\"}} 0.5\n\
         DCGM_FI_DEV_BOARD_POWER_WATTS{{gpu=\"0\",UUID=\"{UUID}\",hostname=\"n\"}} 412.5\n"
    ));
    assert_eq!(
        lines(&mapped),
        [
            format!("{UUID} gpufleet_gpu_utilization_ratio = 0.5"),
            format!("{UUID} gpufleet_gpu_power_watts = 412.5")
        ]
    );
}

#[test]
fn every_one_of_gkes_21_families_becomes_a_reading() {
    let families = "DEV_SM_CLOCK DEV_MEMORY_TEMP DEV_GPU_TEMP DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION \
        DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_FB_TOTAL DEV_FB_FREE DEV_FB_USED PROF_GR_ENGINE_ACTIVE PROF_SM_ACTIVE \
        PROF_PIPE_TENSOR_ACTIVE PROF_PIPE_FP64_ACTIVE PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_DRAM_ACTIVE \
        PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES PROF_NVLINK_TX_BYTES PROF_NVLINK_RX_BYTES";
    let text: String = families
        .split_ascii_whitespace()
        .map(|family| format!("DCGM_FI_{family}{{gpu=\"0\",UUID=\"{UUID}\"}} 1\n"))
        .collect();
    let mapped = map(&text);
    assert_eq!(mapped.resources[0].samples.len(), 21);
    assert_eq!(mapped.unknown, 0);
}

#[test]
fn a_mig_instance_is_a_share_and_the_cards_power_stays_the_cards() {
    let labels = format!(r#"gpu="0",UUID="{UUID}",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7""#);
    let mapped = map(&format!(
        "DCGM_FI_PROF_SM_ACTIVE{{{labels}}} 0.25\nDCGM_FI_DEV_POWER_USAGE{{{labels}}} 300\n"
    ));
    assert_eq!(
        lines(&mapped),
        [
            format!("{UUID} gpufleet_gpu_power_watts = 300"),
            format!("{UUID}/gi7 gpufleet_gpu_sm_active_ratio = 0.25"),
        ]
    );
    let share = &mapped.resources[1].resource;
    assert_eq!(share.kind, ResourceKind::Share);
    assert_eq!(share.attribute(attribute::PARENT), Some(UUID));
    assert_eq!(share.attribute(attribute::MIG_PROFILE), Some("1g.10gb"));
    assert_eq!(share.attribute(attribute::MIG_GPU_INSTANCE), Some("7"));
}

#[test]
fn a_time_sliced_gpu_is_counted_once_not_once_per_pod() {
    let line = |pod: &str| {
        format!("DCGM_FI_DEV_POWER_USAGE{{gpu=\"0\",UUID=\"{UUID}\",pod=\"{pod}\"}} 300\n")
    };
    let mapped = map(&(line("a") + &line("b")));
    assert_eq!(
        lines(&mapped),
        [format!("{UUID} gpufleet_gpu_power_watts = 300")]
    );
}

/// Each resource with what its series say of its holder.
fn holders(mapped: &Mapped) -> Vec<(String, Option<Said>)> {
    let resources = mapped.resources.iter();
    resources
        .map(|it| (it.resource.id.to_string(), it.said.clone()))
        .collect()
}

/// These pods of namespace `ml`, in container `main`.
fn pods(names: &[&str]) -> Said {
    let pod = |name: &&str| Pod {
        namespace: "ml".to_owned(),
        name: (*name).to_owned(),
        container: "main".to_owned(),
        replica: None,
    };
    Said::Pods(names.iter().map(pod).collect())
}

fn labels_of(pod: &str) -> String {
    format!("pod=\"{pod}\",namespace=\"ml\",container=\"main\"")
}

#[test]
fn the_pod_that_holds_a_gpu_is_taken_from_whichever_of_its_series_names_it() {
    let line = |gpu: char, metric: &str, labels: &str| {
        format!("DCGM_FI_DEV_{metric}{{UUID=\"GPU-{gpu}\",{labels}}} 1\n")
    };
    let mapped = map(&[
        line('a', "GPU_TEMP", ""),
        line('a', "POWER_USAGE", &labels_of("train-0")),
        line('a', "GPU_UTIL", &labels_of("train-0")),
        line('b', "GPU_TEMP", "pod=\"\",namespace=\"\",container=\"\""),
        line('c', "GPU_TEMP", ""),
        line('d', "GPU_TEMP", &labels_of("one")),
        line('d', "POWER_USAGE", &labels_of("other")),
        line('e', "GPU_TEMP", &labels_of("No Pod")),
    ]
    .concat());
    let expected = [
        ("GPU-a", pods(&["train-0"])),
        ("GPU-b", Said::Nobody),
        ("GPU-c", Said::Nothing),
        ("GPU-d", pods(&["one", "other"])),
        ("GPU-e", Said::Unreadable),
    ];
    let expected = expected.map(|(id, said)| (id.to_owned(), Some(said)));
    assert_eq!(holders(&mapped), expected);
}

#[test]
fn an_instance_has_its_own_pod_and_its_card_none_of_them() {
    let lines = |instance: &str, pod: &str| {
        let of = format!("UUID=\"{UUID}\",GPU_I_ID=\"{instance}\",{}", labels_of(pod));
        format!("DCGM_FI_PROF_SM_ACTIVE{{{of}}} 0.5\nDCGM_FI_DEV_POWER_USAGE{{{of}}} 300\n")
    };
    let mapped = map(&(lines("7", "train-0") + &lines("9", "serve")));
    let expected = [
        (UUID.to_owned(), Some(Said::Nothing)),
        (format!("{UUID}/gi7"), Some(pods(&["train-0"]))),
        (format!("{UUID}/gi9"), Some(pods(&["serve"]))),
    ];
    assert_eq!(holders(&mapped), expected);
}

#[test]
fn of_whose_table_names_no_labels_nothing_is_said_until_another_table_s_series_come() {
    let other = format!(
        "nv_gpu_power_usage{{gpu_uuid=\"{UUID}\",{}}} 100\n",
        labels_of("p")
    );
    assert_eq!(holders(&map(&other)), [(UUID.to_owned(), None)]);
    let dcgm = format!(
        "DCGM_FI_DEV_GPU_TEMP{{UUID=\"{UUID}\",{}}} 30\n",
        labels_of("train-0")
    );
    let held = [(UUID.to_owned(), Some(pods(&["train-0"])))];
    assert_eq!(holders(&map(&(other.clone() + &dcgm))), held);
    assert_eq!(holders(&map(&(dcgm + &other))), held);
}

#[test]
fn a_null_uuid_is_replaced_by_the_place_on_the_node() {
    let null = "00000000-0000-0000-0000-000000000000";
    let cases = [
        (
            format!(
                "DCGM_FI_DEV_POWER_USAGE{{gpu=\"3\",UUID=\"GPU-{null}\",pci_bus_id=\"00000000:5A:00.0\"}} 1\n"
            ),
            "node-1/00000000:5a:00.0",
        ),
        (
            format!("DCGM_FI_DEV_POWER_USAGE{{gpu=\"3\",UUID=\"GPU-{null}\"}} 1\n"),
            "node-1/gpu3",
        ),
        (
            format!(
                "nvidia_smi_gpu_info{{uuid=\"{null}\",pci_bus_id=\"00000000:83:00.0\",index=\"0\"}} 1\nnvidia_smi_power_draw_watts{{uuid=\"{null}\"}} 1\n"
            ),
            "node-1/00000000:83:00.0",
        ),
    ];
    for (text, id) in cases {
        assert_eq!(map(&text).resources[0].resource.id.as_ref(), id, "{text}");
    }
}

#[test]
fn two_gpus_with_one_null_uuid_are_not_guessed_apart() {
    let info =
        |address: &str| format!("nvidia_smi_gpu_info{{uuid=\"0-0\",pci_bus_id=\"{address}\"}} 1\n");
    let mapped = map(&(info("a") + &info("b") + "nvidia_smi_power_draw_watts{uuid=\"0-0\"} 100\n"));
    assert_eq!((mapped.resources.len(), mapped.unplaced), (0, 1));
    let nameless = map("DCGM_FI_DEV_POWER_USAGE 3\n");
    assert_eq!((nameless.resources.len(), nameless.unplaced), (0, 1));
}

#[test]
fn nvidia_gpu_exporters_short_uuid_becomes_nvmls() {
    let mapped = map(
        "nvidia_smi_gpu_info{uuid=\"5f2c-1\",name=\"NVIDIA L4\",index=\"2\"} 1\nnvidia_smi_utilization_gpu_ratio{uuid=\"5f2c-1\"} 0.5\n",
    );
    assert_eq!(
        lines(&mapped),
        ["GPU-5f2c-1 gpufleet_gpu_utilization_ratio = 0.5"]
    );
    let resource = &mapped.resources[0].resource;
    assert_eq!(resource.attribute(attribute::GPU_MODEL), Some("NVIDIA L4"));
    assert_eq!(resource.attribute(attribute::GPU_INDEX), Some("2"));
}

#[test]
fn amd_and_tpu_exporters_are_read_and_the_gpu_plugins_same_names_are_not_taken_for_tpus() {
    let mapped = map(concat!(
        "gpu_gfx_activity{gpu_id=\"2\",gpu_uuid=\"ccff-1\",card_series=\"AMD Instinct MI300X OAM\"} 40\n",
        "gpu_used_vram{gpu_id=\"2\",gpu_uuid=\"ccff-1\"} 1024\n",
        "gpu_energy_consumed{gpu_id=\"2\",gpu_uuid=\"ccff-1\"} 2000000\n",
        "gpu_power_usage{other=\"exporter\"} 40\n",
        "duty_cycle{accelerator_id=\"4804-1\",make=\"cloud-tpu\",model=\"tpu-v6e-slice\"} 96\n",
        "duty_cycle_node{accelerator_id=\"4804-1\",make=\"cloud-tpu\",model=\"tpu-v6e-slice\"} 95\n",
        "duty_cycle{accelerator_id=\"GPU-1\",make=\"nvidia\",model=\"l4\"} 10\n",
    ));
    assert_eq!(
        lines(&mapped),
        [
            "4804-1 gpufleet_gpu_utilization_ratio = 0.96",
            "ccff-1 gpufleet_gpu_utilization_ratio = 0.4",
            "ccff-1 gpufleet_gpu_memory_used_bytes = 1073741824",
            "ccff-1 gpufleet_gpu_energy_joules_total = 2",
        ]
    );
    assert_eq!(mapped.unknown, 2);
}

#[test]
fn a_vllm_servers_engines_are_summed_and_its_latencies_are_those_since_the_last_scrape() {
    let body = |slow: u32| {
        format!(
            "vllm:prompt_tokens_total{{model_name=\"m\",engine=\"0\"}} 10\n\
             vllm:prompt_tokens_total{{model_name=\"m\",engine=\"1\"}} 5\n\
             vllm:kv_cache_usage_perc{{model_name=\"m\",engine=\"0\"}} 0.2\n\
             vllm:kv_cache_usage_perc{{model_name=\"m\",engine=\"1\"}} 0.4\n\
             vllm:time_to_first_token_seconds_bucket{{model_name=\"m\",le=\"1.0\"}} 100\n\
             vllm:time_to_first_token_seconds_bucket{{model_name=\"m\",le=\"2.0\"}} {slow}\n\
             vllm:time_to_first_token_seconds_bucket{{model_name=\"m\",le=\"+Inf\"}} {slow}\n"
        )
    };
    let mut mapper = mapper();
    let first = lines(&mapper.map(&parse(&body(100)).series));
    let server = "127.0.0.1:9400/m gpufleet_serving";
    assert_eq!(
        first,
        [
            format!("{server}_prompt_tokens_total = 15"),
            format!("{server}_kv_cache_used_ratio = {}", (0.2 + 0.4) / 2.0),
            format!("{server}_time_to_first_token_p50_seconds = not_ready"),
            format!("{server}_time_to_first_token_p99_seconds = not_ready"),
        ]
    );
    let second = lines(&mapper.map(&parse(&body(200)).series));
    assert_eq!(
        second[2],
        format!("{server}_time_to_first_token_p50_seconds = 1.5")
    );
    assert_eq!(
        second[3],
        format!("{server}_time_to_first_token_p99_seconds = 1.99")
    );
}

/// What a server tells at two scrapes, made of one exposition in its own form in which `@` stands for a number.
fn between(exposition: &str, [first, second]: [u32; 2]) -> [Vec<String>; 2] {
    let mut mapper = mapper();
    [first, second].map(|it| {
        let body = exposition.replace('@', &it.to_string());
        let parsed = parse(&body);
        assert_eq!(parsed.refused, 0, "{:?}", parsed.refusals);
        lines(&mapper.map(&parsed.series))
    })
}

#[test]
fn an_sglang_servers_ranks_are_summed_and_priorities_do_not_count_twice() {
    let text = include_str!("tables/tests/sglang.metrics");
    let [first, second] = between(text, [10, 30]);
    let server = "127.0.0.1:9400/qwen gpufleet_serving";
    let expected = |tokens: u32, latencies: [&str; 4]| {
        [
            format!("{server}_prompt_tokens_total = {}", 3 * tokens * 100),
            format!("{server}_generated_tokens_total = {}", tokens * 100 + 7),
            format!("{server}_requests_total = {tokens}"),
            format!("{server}_requests_queued = 5"),
            format!("{server}_requests_running = 12"),
            format!("{server}_kv_cache_used_ratio = {}", (0.5 + 0.25) / 2.0),
            format!(
                "{server}_time_to_first_token_p50_seconds = {}",
                latencies[0]
            ),
            format!(
                "{server}_time_to_first_token_p99_seconds = {}",
                latencies[1]
            ),
            format!(
                "{server}_time_per_output_token_p50_seconds = {}",
                latencies[2]
            ),
            format!(
                "{server}_time_per_output_token_p99_seconds = {}",
                latencies[3]
            ),
        ]
    };
    assert_eq!(first, expected(10, ["not_ready"; 4]));
    // Of twenty requests half came within 0.1 s; all tokens came between 0.008 and 0.01 s.
    assert_eq!(
        second,
        expected(30, ["0.1", "0.198", "0.009000000000000001", "0.00998"])
    );
}

#[test]
fn a_tgi_server_names_no_model_and_is_the_endpoint_itself() {
    let text = include_str!("tables/tests/tgi.metrics");
    let [first, second] = between(text, [10, 30]);
    let server = "127.0.0.1:9400 gpufleet_serving";
    let expected = |requests: u32, latencies: [&str; 2]| {
        [
            format!("{server}_prompt_tokens_total = {}", requests * 10),
            format!("{server}_generated_tokens_total = {}", requests * 100),
            format!("{server}_requests_total = {requests}"),
            format!("{server}_requests_queued = 4"),
            format!("{server}_requests_running = 16"),
            format!(
                "{server}_time_per_output_token_p50_seconds = {}",
                latencies[0]
            ),
            format!(
                "{server}_time_per_output_token_p99_seconds = {}",
                latencies[1]
            ),
        ]
    };
    assert_eq!(first, expected(10, ["not_ready"; 2]));
    assert_eq!(second, expected(30, ["0.015", "0.0199"]));
}

#[test]
fn what_no_table_of_a_model_server_reads_makes_no_resource() {
    let mapped = map("sglang:cache_hit_rate{model_name=\"m\"} 0.5\ntgi_request_count 3\n");
    assert_eq!((mapped.resources.len(), mapped.unknown), (0, 2));
    // A series whose model is not named is of nobody.
    let mapped = map("sglang:token_usage 0.5\n");
    assert_eq!((mapped.resources.len(), mapped.unplaced), (0, 1));
}

#[test]
fn a_triton_server_is_read_by_its_conditions_and_in_seconds() {
    let body = |count: u32| {
        format!(
            "nv_trt_llm_request_metrics{{model=\"m\",request_type=\"waiting\",version=\"1\"}} 3\n\
             nv_trt_llm_request_metrics{{model=\"m\",request_type=\"scheduled\",version=\"1\"}} 4\n\
             nv_trt_llm_kv_cache_block_metrics{{model=\"m\",kv_cache_block_type=\"fraction\"}} 0.5\n\
             nv_trt_llm_kv_cache_block_metrics{{model=\"m\",kv_cache_block_type=\"max\"}} 6239\n\
             nv_inference_first_response_histogram_ms_bucket{{model=\"m\",le=\"100\"}} {count}\n\
             nv_inference_first_response_histogram_ms_bucket{{model=\"m\",le=\"+Inf\"}} {count}\n"
        )
    };
    let mut mapper = mapper();
    mapper.map(&parse(&body(10)).series);
    let server = "127.0.0.1:9400/m gpufleet_serving";
    assert_eq!(
        lines(&mapper.map(&parse(&body(20)).series)),
        [
            format!("{server}_requests_queued = 3"),
            format!("{server}_requests_running = 4"),
            format!("{server}_kv_cache_used_ratio = 0.5"),
            format!("{server}_time_to_first_token_p50_seconds = 0.05"),
            format!("{server}_time_to_first_token_p99_seconds = 0.099"),
        ]
    );
}

#[test]
fn resources_beyond_the_limit_are_counted_not_kept() {
    let text: String = (0..MAX_RESOURCES + 5)
        .map(|n| format!("DCGM_FI_DEV_POWER_USAGE{{UUID=\"GPU-a{n}\"}} 1\n"))
        .collect();
    let mapped = map(&text);
    assert_eq!(
        (mapped.resources.len(), mapped.over_limit),
        (MAX_RESOURCES, 5)
    );
}

#[test]
fn of_two_tables_that_know_one_gpu_each_adds_what_the_other_lacks() {
    let mapped = map(&format!(
        "nv_gpu_power_usage{{gpu_uuid=\"{UUID}\"}} 100\nnv_gpu_power_limit{{gpu_uuid=\"{UUID}\"}} 700\n\
         DCGM_FI_DEV_POWER_USAGE{{gpu=\"0\",UUID=\"{UUID}\"}} 101\n"
    ));
    assert_eq!(
        lines(&mapped),
        [
            format!("{UUID} gpufleet_gpu_power_watts = 101"),
            format!("{UUID} gpufleet_gpu_power_limit_watts = 700"),
        ]
    );
    assert_eq!(mapped.resources[0].table, "dcgm");
}
