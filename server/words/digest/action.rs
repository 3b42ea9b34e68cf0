//! What an owner does about time that is for nothing.

use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Payer;

/// What to do about time in a state, by who pays for it; nothing to do about time that is not for nothing.
pub(super) fn action(state: State, payer: &str) -> &'static str {
    let is_a_team = payer != Payer::Nobody.name() && payer != Payer::Unowned.name();
    match state {
        State::Parked if is_a_team => {
            "End it when its work is done, or save a checkpoint and give the GPUs back."
        }
        State::HeldEmpty if is_a_team => {
            "Give the GPUs back: nothing is loaded on them. Ask for them when the work begins."
        }
        State::Parked | State::HeldEmpty => {
            "Find out who runs it and whether it still needs them; an owner rule names its team."
        }
        State::Unallocated => {
            "Give them to who waits for GPUs, or give back nodes that are free as a whole."
        }
        State::Stalled => {
            "Look at its page which rank the others wait for, and start it again from its last checkpoint."
        }
        State::Unhealthy => {
            "Start it elsewhere; who runs the cluster has to have the GPU or node repaired."
        }
        State::StartingPod => {
            "Mend what keeps its container from running; where it waits for its image, have that on the nodes before."
        }
        State::StartingNode => {
            "Ask for nodes shortly before they are needed, and keep them between runs."
        }
        State::Draining => "Give the node back as soon as it is empty.",
        State::Unobserved
        | State::ActiveEfficient
        | State::ActiveInefficient
        | State::ActiveUnrated
        | State::Gap => "",
    }
}
